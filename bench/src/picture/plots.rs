use super::axis::{Axis, short};
use super::chart::{Chart, Line};
use serde_json::Value;

type Points = Vec<(f64, f64)>;
/// An axis that has room for all values.
type Scale = fn(Vec<f64>) -> Axis;

/// The three pictures, each with its file.
pub(super) fn of(run: &Value) -> [(&'static str, Option<Chart>); 3] {
    [
        ("rate-over-backlog.svg", backlog(run)),
        ("latency.svg", latency(run)),
        ("held-transaction.svg", held(run)),
    ]
}

fn contests<'r>(run: &'r Value, part: &str) -> impl Iterator<Item = &'r Value> {
    let all = run["contests"].as_array().into_iter().flatten();
    let part = part.to_owned();
    all.filter(move |contest| contest["name"].as_str().is_some_and(|name| name.contains(&part)))
}

fn contenders(contest: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = contest["contenders"].as_array().into_iter().flatten();
    all.filter_map(|contender| Some((contender["name"].as_str()?, &contender["samples"])))
}

/// A curve of the first sample that has it.
fn curve(samples: &Value, name: &str) -> Option<Points> {
    let samples = samples.as_array()?;
    let curve = samples.iter().find_map(|sample| sample["curves"][name].as_array())?;
    curve.iter().map(|point| Some((point[0].as_f64()?, point[1].as_f64()?))).collect()
}

fn chart(
    title: &'static str,
    (x, shown): (&'static str, fn(f64) -> String),
    y: &'static str,
    axes: (Scale, Scale),
    lines: Vec<Line>,
) -> Option<Chart> {
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    if all().count() < 2 {
        return None;
    }
    let across = axes.0(all().map(|point| point.0).collect());
    let up = axes.1(all().map(|point| point.1).collect());
    Some(Chart { title, x: (x, across), y: (y, up), shown, lines })
}

fn linear(values: Vec<f64>) -> Axis {
    Axis::linear(values.into_iter())
}

fn log(values: Vec<f64>) -> Axis {
    Axis::log(values.into_iter())
}

/// A point for each backlog: how many waited, how fast they went.
fn backlog(run: &Value) -> Option<Chart> {
    let contest = contests(run, "events waiting").next()?;
    let point = |(_, samples): (&str, &Value)| {
        let waiting = curve(samples, "progress")?.last()?.1;
        let mut rates: Vec<f64> = samples
            .as_array()?
            .iter()
            .filter_map(|sample| sample["values"]["steady_rate"].as_f64())
            .collect();
        rates.sort_by(f64::total_cmp);
        Some((waiting, *rates.get(rates.len() / 2)?))
    };
    let mut points: Points = contenders(contest).filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lines = vec![Line { name: "relevo, to nobody".into(), points, dashed: false }];
    let across = ("events that wait", short as fn(f64) -> String);
    chart("Rate over the size of the backlog", across, "events/s", (log, linear), lines)
}

/// Percentiles at 100 events/s and half of full rate; dashed is one commit and one confirm.
fn latency(run: &Value) -> Option<Chart> {
    let mut lines = Vec::new();
    for contest in contests(run, "half of full rate") {
        let name = contest["name"].as_str()?.split(", ").nth(1).unwrap_or_default();
        for (contender, samples) in contenders(contest) {
            let Some(points) = curve(samples, "latency") else { continue };
            let dashed = contender != "relevo";
            let name = if dashed { format!("{name}, bare") } else { name.to_owned() };
            let tail = |(part, ms): (f64, f64)| (1.0 / (1.0 - part).max(1e-3), ms);
            lines.push(Line { name, points: points.into_iter().map(tail).collect(), dashed });
        }
    }
    let title = "From commit to arrival, at half of full rate";
    let across = ("percentile", percentile as fn(f64) -> String);
    chart(title, across, "ms", (log, log), lines)
}

/// One in so many is slower: 10 is the 90th percentile.
fn percentile(one_in: f64) -> String {
    format!("{}%", short((1.0 - 1.0 / one_in) * 100.0))
}

/// The rate of one drain after the other; dashed is the rate of a clean run.
fn held(run: &Value) -> Option<Chart> {
    let contest = contests(run, "transaction held open").next()?;
    let ends =
        contenders(contest).filter_map(|(_, samples)| Some(curve(samples, "drains")?.last()?.0));
    let end = ends.fold(0.0, f64::max);
    let line = |(name, samples): (&str, &Value)| {
        let held = curve(samples, "drains");
        let dashed = held.is_none();
        let points = held.or_else(|| clean(samples, end))?;
        Some(Line { name: name.to_owned(), points, dashed })
    };
    let lines = contenders(contest).filter_map(line).collect();
    let across = ("seconds since it was opened", short as fn(f64) -> String);
    let title = "Rate while a transaction is held open";
    chart(title, across, "events/s", (linear, log), lines)
}

/// The rate of the first sample, from the beginning to the end.
fn clean(samples: &Value, end: f64) -> Option<Points> {
    let (events, seconds) = (samples[0]["events"].as_f64()?, samples[0]["seconds"].as_f64()?);
    let rate = events / seconds.max(1e-9);
    Some(vec![(0.0, rate), (end, rate)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_curves_draws_nothing() {
        let run = serde_json::json!({ "contests": [] });
        assert!(of(&run).iter().all(|(_, chart)| chart.is_none()));
    }

    #[test]
    fn one_in_a_thousand_is_a_percentile() {
        assert_eq!(percentile(1000.0), "99.9%");
    }

    #[test]
    fn each_contender_of_a_held_transaction_is_a_line() {
        let held = serde_json::json!([{ "curves": { "drains": [[1.0, 9.0], [2.0, 5.0]] } }]);
        let clean = serde_json::json!([{ "events": 90, "seconds": 10.0, "curves": {} }]);
        let contest = serde_json::json!({
            "name": "a transaction held open for 2 s, 5 late events in it",
            "contenders": [
                { "name": "relevo, held", "samples": held },
                { "name": "relevo, clean", "samples": clean },
            ],
        });
        let run = serde_json::json!({ "contests": [contest] });
        let chart = super::held(&run).unwrap();
        assert_eq!(chart.lines.len(), 2);
        assert_eq!(chart.lines[1].points, [(0.0, 9.0), (2.0, 9.0)]);
        assert!(chart.lines[1].dashed && chart.svg().contains("relevo, held"));
    }
}

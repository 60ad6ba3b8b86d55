//! How the demo ends: one JSON object, or words.

use super::ink::thousands;
use super::part::Part;
use proof::{Report, Verdict};
use relevo_core::{Error, Kind, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// The object of the first part (the shop floor, or a system shown alone), and those of the others beside it by name.
#[derive(Serialize)]
struct Told<'v> {
    #[serde(flatten)]
    first: &'v Report,
    #[serde(flatten)]
    beside: BTreeMap<&'static str, &'v Report>,
}

/// Prints the end.
pub(super) fn tell(verdicts: &[(Part, Verdict)], json: bool) -> Result<()> {
    for (part, verdict) in verdicts {
        let whose = if *part == Part::Shop { String::new() } else { format!("{}: ", part.title()) };
        verdict.broken.iter().for_each(|broken| eprintln!("BROKEN: {whose}{broken}"));
    }
    let text = if json { in_json(verdicts)? } else { in_words(verdicts) };
    // Nobody may be reading any more; the exit code still tells.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn in_json(verdicts: &[(Part, Verdict)]) -> Result<String> {
    let failed = |e| Error::new(Kind::InvalidPayload, format!("the report: {e}"));
    let Some(((_, first), beside)) = verdicts.split_first() else { return Ok(String::new()) };
    let beside = beside.iter().map(|(part, verdict)| (part.name(), &verdict.report));
    let told = Told { first: &first.report, beside: beside.collect() };
    Ok(serde_json::to_string(&told).map_err(failed)? + "\n")
}

fn in_words(verdicts: &[(Part, Verdict)]) -> String {
    let mut text = String::new();
    for (part, verdict) in verdicts {
        text += &format!("\n{}:\n{}", part.joined(), figures(&verdict.report));
    }
    if verdicts.iter().all(|(_, verdict)| verdict.holds()) {
        text += match verdicts.iter().any(|(part, _)| *part == Part::Shop) {
            true => {
                "Nothing lost, no effect twice, nothing from a rolled-back transaction,\n\
                 and the orders of every customer in their order.\n"
            }
            false => "Nothing lost, nothing done twice, everything in its order.\n",
        };
    }
    text
}

fn figures(report: &Report) -> String {
    let Report { committed, delivered, effects, duplicates_seen, retried, dead, lost } = report;
    let n = |n: &u64| thousands(*n);
    format!(
        "  committed {}   delivered {}   effects {}   dead letters {}\n  \
         retried {}   duplicates absorbed {}   lost {}\n",
        n(committed),
        n(delivered),
        n(effects),
        n(dead),
        n(retried),
        n(duplicates_seen),
        n(lost)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(committed: u64) -> Verdict {
        Verdict { report: Report { committed, ..Report::default() }, broken: Vec::new() }
    }

    #[test]
    fn the_shops_object_stays_where_it_was_and_one_alone_is_the_object_itself() {
        let all = [
            (Part::Shop, verdict(1)),
            (Part::Ticketflow, verdict(2)),
            (Part::Smartedify, verdict(3)),
        ];
        let told = in_json(&all).unwrap();
        assert!(told.starts_with(r#"{"committed":1,"delivered":0,"effects":0,"#), "{told}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(
            (&told["ticketflow"]["committed"], &told["smartedify"]["committed"]),
            (&2.into(), &3.into())
        );
        assert_eq!(told.as_object().unwrap().len(), 9);
        let alone = in_json(&all[2..]).unwrap();
        assert!(
            alone.starts_with(r#"{"committed":3,"#) && !alone.contains("smartedify"),
            "{alone}"
        );
    }
}

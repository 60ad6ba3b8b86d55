//! Metrics, alerts and the dashboard, against the real `/metrics`.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use common::eventually;
use relevo_testkit::services::{Promtool, require};
use smartedify::embedded::{self, Break, Options};
use smartedify::metrics;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn every_alert_fires_when_it_must_and_not_before() {
    let Some(promtool) = require(Promtool::find()) else { return };
    let checked = promtool.check_rules(&file("alerts/outbox.rules.yml")).unwrap();
    assert!(checked.contains("5 rules found"), "{checked}");
    promtool.test_rules(&file("alerts/outbox.test.yml")).unwrap();
    // The tests have teeth: with another threshold, time, sum or window they fail.
    let folder = tempfile::tempdir().unwrap();
    let rules = std::fs::read_to_string(file("alerts/outbox.rules.yml")).unwrap();
    let blunt = [
        ("> 500", "> 499"),
        ("> 500", "> 501"),
        ("> 30\n", "> 28\n"),
        ("> 30\n", "> 32\n"),
        ("> 0.01", "> 0.0099"),
        ("> 0.01", "> 0.012"),
        ("> 60", "> 59"),
        ("> 60", "> 61"),
        ("> 100", "> 99"),
        ("> 100", "> 101"),
        ("max by (service) (outbox_backlog_gauge)", "sum by (service) (outbox_backlog_gauge)"),
        ("max by (service) (outbox_pending_age", "sum by (service) (outbox_pending_age"),
        ("max by (service) (outbox_dlq_gauge)", "sum by (service) (outbox_dlq_gauge)"),
        ("for: 5m", "for: 3m"),
        ("for: 5m", "for: 7m"),
        ("for: 15m", "for: 13m"),
        ("for: 15m", "for: 17m"),
        ("[15m]", "[5m]"),
        ("[15m]", "[30m]"),
    ];
    for (sharp, blunt) in blunt {
        assert!(rules.contains(sharp));
        std::fs::write(folder.path().join("outbox.rules.yml"), rules.replace(sharp, blunt))
            .unwrap();
        std::fs::copy(file("alerts/outbox.test.yml"), folder.path().join("outbox.test.yml"))
            .unwrap();
        assert!(promtool.test_rules(&folder.path().join("outbox.test.yml")).is_err(), "{blunt}");
    }
}

/// The names of metrics in a query: words before a brace, a bracket or a parenthesis's end that begin as ours do.
fn metrics_of(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("outbox_") || word.starts_with("relevo_"))
        .map(str::to_owned)
        .collect()
}

/// The labels that a query filters a metric by, and those it groups by.
fn labels_of(query: &str, metric: &str) -> BTreeSet<String> {
    let word = |text: &str| {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let opening = format!("{metric}{{");
    let filters = query.split(&opening).skip(1).flat_map(|rest| {
        let inside = rest.split('}').next().unwrap_or_default();
        inside.split(',').map(|part| word(part.trim())).collect::<Vec<_>>()
    });
    let groups = query.split("by (").skip(1).flat_map(|rest| {
        let inside = rest.split(')').next().unwrap_or_default();
        inside.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>()
    });
    filters.chain(groups).collect()
}

#[test]
fn labels_are_read_out_of_a_query() {
    let query = r#"sum by (service, le) (rate(outbox_a_bucket{service=~"$service", class="x"}[5m])) / outbox_b{z="1"}"#;
    let labels = |metric| labels_of(query, metric).into_iter().collect::<Vec<_>>();
    assert_eq!(labels("outbox_a_bucket"), ["class", "le", "service"]);
    assert_eq!(labels("outbox_b"), ["le", "service", "z"]);
}

/// What is asked of a metric must be on every line of it: a filter or a group by a label that is not there shows nothing.
fn assert_on_the_page(page: &str, query: &str) {
    for metric in metrics_of(query) {
        let lines: Vec<&str> =
            page.lines().filter(|line| line.starts_with(&format!("{metric}{{"))).collect();
        assert!(!lines.is_empty(), "{metric} of {query}\n{page}");
        for label in labels_of(query, &metric) {
            let has = |line: &&str| {
                let named = |before: &str| line.contains(&format!("{before}{label}=\""));
                named("{") || named(",")
            };
            assert!(lines.iter().all(has), "{metric} has no {label}, asked by {query}\n{lines:?}");
        }
    }
}

/// The labels that the panels' legends show must be left when the query has grouped.
fn assert_legends(dashboard: &serde_json::Value) {
    let panels = dashboard["panels"].as_array().unwrap();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap()) {
        let (query, legend) = (target["expr"].as_str().unwrap(), &target["legendFormat"]);
        let grouped = labels_of(query, "no metric");
        for shown in legend.as_str().unwrap().split("{{").skip(1) {
            let label = shown.split("}}").next().unwrap().trim();
            assert!(grouped.contains(label), "{legend} of {query}");
        }
    }
}

fn queries() -> Vec<String> {
    let dashboard = std::fs::read_to_string(file("grafana/outbox.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert_legends(&dashboard);
    let panels = dashboard["panels"].as_array().unwrap();
    let titles: Vec<&str> = panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    for documented in ["Backlog", "Publish latency", "Failure rate"] {
        assert!(titles.contains(&documented), "{titles:?}");
    }
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Every process reads the same table: added up, two of them would show twice of what there is.
#[test]
fn what_every_process_reads_from_the_table_is_not_added_up() {
    let of_the_table = ["outbox_backlog_gauge", "outbox_pending_age", "outbox_dlq_gauge"];
    let asked = queries();
    for metric in of_the_table {
        let asking: Vec<_> = asked.iter().filter(|query| query.contains(metric)).collect();
        assert!(!asking.is_empty(), "{metric}");
        let largest = |query: &&String| query.starts_with(&format!("max by (service) ({metric}"));
        assert!(asking.iter().all(largest), "{asking:?}");
    }
    for query in asked.iter().filter(|query| query.contains("_total")) {
        assert!(query.contains("sum by (service") && !query.contains("max"), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documents_metrics_and_all_that_the_dashboard_asks_for_are_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::in_folder(folder.path());
    let (handle, began) = (metrics::install("tenant-service").unwrap(), Instant::now());
    options.metrics = Some(handle.clone());
    options.settings.poll = (Duration::from_millis(10), Duration::from_millis(100));
    let running = embedded::start(options).await.unwrap();
    running.break_it(Break::Poison).await.unwrap();
    running.break_it(Break::Twice).await.unwrap();
    let client = smartedify::client::Client::to(running.addresses().api);
    let page = eventually("the figures show what happened", async || {
        let page = client.get("/metrics").await.unwrap().body;
        let shown = |name: &str| value(&page, name).is_some_and(|value| value > 0.0);
        let wanted = ["outbox_published_total", "outbox_retry_total", "outbox_dlq_gauge"];
        wanted.iter().all(|name| shown(name)).then_some(page)
    })
    .await;
    for name in metrics::DOCUMENTED {
        let name =
            if name.ends_with("_seconds") { format!("{name}_count") } else { name.to_owned() };
        assert!(page.contains(&format!("\n{name}{{service=\"tenant-service\"")), "{name}\n{page}");
    }
    assert_eq!(
        value(
            &page,
            "outbox_failed_permanent_total{service=\"tenant-service\",subscription=\"outbox_events\",class=\"permanent\"}"
        ),
        Some(1.0)
    );
    let rules = std::fs::read_to_string(file("alerts/outbox.rules.yml")).unwrap();
    let alerts = rules.split("- alert:").skip(1).map(str::to_owned);
    queries().into_iter().chain(alerts).for_each(|query| assert_on_the_page(&page, &query));
    if let Some(promtool) = require(Promtool::find()) {
        // It has opinions on names; the document has fixed them. What it cannot read would be an error of another kind.
        let said = promtool.check_metrics(&page).unwrap_or_else(|error| error.to_string());
        assert!(!said.contains("error while linting"), "{said}");
        query_syntax(&promtool);
    }
    let verdict = running.finish(Duration::from_secs(120)).await.unwrap();
    assert!(verdict.broken.is_empty(), "{verdict:?}");
    assert_counted(&handle.render(), verdict.report.delivered as f64, began.elapsed());
}

/// What the counters say when all is done agrees with what was done, and with each other.
fn assert_counted(page: &str, delivered: f64, run: Duration) {
    let of = |name: &str| value(page, &format!("{name}{{service=\"tenant-service\"")).unwrap();
    let (published, retried) = (of("outbox_published_total"), of("outbox_retry_total"));
    assert_eq!(published, delivered);
    let attempts = of("outbox_publish_attempts_total");
    // The event that makes no sense had its attempt, too.
    assert!(retried > 0.0 && attempts >= published + retried + 1.0, "{attempts}\n{page}");
    let latency = |part: &str| of(&format!("outbox_publish_latency_seconds_{part}"));
    assert_eq!(latency("count"), published, "one for each event that was published");
    // In seconds: whatever was tried again waited for 50 ms at least, and nothing took longer than the run.
    let sum = latency("sum");
    assert!(sum >= 0.05 && sum < run.as_secs_f64() * published, "{sum}\n{page}");
}

/// Every query of the dashboard is one that Prometheus understands.
fn query_syntax(promtool: &Promtool) {
    let folder = tempfile::tempdir().unwrap();
    let rule = |(n, query): (usize, &String)| {
        let query = query.replace("$service", ".*").replace('\'', "''");
        format!("      - record: panel:number_{n}\n        expr: '{query}'\n")
    };
    let rules: String = queries().iter().enumerate().map(rule).collect();
    let path = folder.path().join("panels.yml");
    std::fs::write(&path, format!("groups:\n  - name: panels\n    rules:\n{rules}")).unwrap();
    promtool.check_rules(&path).unwrap();
}

/// The value of the first line that begins so.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

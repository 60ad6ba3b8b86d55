//! What the log never shows, whatever `RELEVO_LOG` says.

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Makes these the lines of the process, without those that would tell a secret.
pub(crate) fn set_up(lines: impl Subscriber + Send + Sync + 'static) {
    // Somebody set one up already (a test that runs commands in its own process): theirs stays.
    let _ = lines.with(filter_fn(tells_no_secret)).try_init();
}

/// Below `info` the client for RabbitMQ writes down every frame it sends, the one with the password too.
fn tells_no_secret(line: &Metadata<'_>) -> bool {
    *line.level() <= Level::INFO || line.target().split("::").next() != Some("lapin")
}

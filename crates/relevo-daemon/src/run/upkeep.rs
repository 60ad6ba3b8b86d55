//! What is done now and then for every open store: figures for the metrics, and upkeep.

use super::board::Board;
use super::stores::Stores;
use super::worker::spread;
use crate::store::Opened;
use relevo_core::dead_letters::LogStatus;
use relevo_core::outbox::adopt::AdoptedTable;
use relevo_core::outbox::{Retention, Upkeep};
use relevo_core::{Error, Kind, Result, telemetry};
use std::sync::Arc;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
const UPKEEP_EVERY: Duration = Duration::from_secs(60);

/// Shows backlog and age of the subscriptions of one store that are worked here. Nothing is counted: the store
/// knows both from its cursors.
pub(super) async fn show_backlogs(
    stores: Arc<Stores>,
    store: String,
    subscriptions: Vec<String>,
    board: Board,
) {
    loop {
        let opened = wait_until_open(&stores, &store).await;
        let status = status_in_time(&opened).await;
        for subscription in &subscriptions {
            board.answered(subscription, status.as_ref().err().map(ToString::to_string));
            match stores.adopted(subscription) {
                Some(table) => show_pending(&*table, subscription).await,
                None => status.iter().for_each(|status| show(status, subscription)),
            }
        }
        tokio::time::sleep(spread(LOOK_EVERY)).await;
    }
}

/// The workers open the stores; whoever only looks waits for them.
async fn wait_until_open(stores: &Stores, store: &str) -> Arc<Opened> {
    loop {
        if let Some(opened) = stores.if_open(store) {
            return opened;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn status_in_time(opened: &Opened) -> Result<LogStatus> {
    let late = |_| Error::new(Kind::Timeout, format!("no answer within {LOOK_PATIENCE:?}"));
    tokio::time::timeout(LOOK_PATIENCE, opened.operate.status()).await.map_err(late)?
}

fn show(status: &LogStatus, name: &str) {
    if let Some(found) = status.subscriptions.iter().find(|subscription| subscription.name == name)
    {
        telemetry::set("outbox_backlog_gauge", name, found.backlog as f64);
        telemetry::set("relevo_oldest_pending_seconds", name, found.oldest_pending_s);
    }
}

/// An adopted table tells itself what waits, and since when.
async fn show_pending(table: &dyn AdoptedTable, name: &str) {
    match tokio::time::timeout(LOOK_PATIENCE, table.pending()).await {
        Ok(Ok(pending)) => {
            telemetry::set("outbox_backlog_gauge", name, pending.rows as f64);
            telemetry::set("relevo_oldest_pending_seconds", name, pending.oldest_s);
        }
        Ok(Err(error)) => {
            tracing::warn!(subscription = name, %error, "what waits cannot be counted")
        }
        Err(_) => tracing::warn!(
            subscription = name,
            "what waits was not counted within {LOOK_PATIENCE:?}"
        ),
    }
}

/// Makes segments ahead and drops what is past retention, about every minute.
pub(super) async fn keep_up(
    stores: Arc<Stores>,
    (store, subscriptions): (String, Vec<String>),
    retention: Retention,
) {
    loop {
        tokio::time::sleep(spread(UPKEEP_EVERY)).await;
        for table in subscriptions.iter().filter_map(|name| stores.adopted(name)) {
            if let Err(error) = table.forget_done(&retention).await {
                tracing::warn!(store, %error, "claims that are done with were not forgotten; again in a minute");
            }
        }
        match wait_until_open(&stores, &store).await.store.upkeep(&retention).await {
            Ok(done) => tell(&store, &done),
            Err(error) => {
                tracing::warn!(store, %error, "upkeep failed; it is tried again in a minute");
            }
        }
    }
}

fn tell(name: &str, done: &Upkeep) {
    for warning in &done.warnings {
        tracing::warn!(store = name, warning, "upkeep");
    }
    if done.segments_dropped + done.segments_made + done.dead_letters_dropped > 0 {
        tracing::info!(
            store = name,
            segments_dropped = done.segments_dropped,
            rows_dropped = done.rows_dropped,
            segments_made = done.segments_made,
            dead_letters_dropped = done.dead_letters_dropped,
            "upkeep"
        );
    }
}

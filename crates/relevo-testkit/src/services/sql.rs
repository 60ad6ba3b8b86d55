//! A statement or two for a test, from synchronous and asynchronous code alike.

use super::{Result, ServiceError};
use std::time::Duration;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A server that does not answer within this time is as good as gone.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs one or more statements.
pub fn execute(url: &str, statements: &str) -> Result<()> {
    with_client(url, async |client| client.batch_execute(statements).await)
}

/// The first column of the first row as text; `NULL` and no row at all are the empty text.
pub fn value(url: &str, query: &str) -> Result<String> {
    let messages = with_client(url, async |client| client.simple_query(query).await)?;
    let first = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    Ok(first.unwrap_or_default())
}

/// Connects, works and disconnects in a thread with a runtime of its own, so that callers need
/// none and may have any.
fn with_client<T: Send>(
    url: &str,
    work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error> + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(failed)?.block_on(async {
                let session = async {
                    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                    tokio::spawn(connection);
                    work(&client).await
                };
                match tokio::time::timeout(LIMIT, session).await {
                    Ok(result) => result.map_err(failed),
                    Err(_) => Err(ServiceError::failed(
                        "PostgreSQL",
                        format!("no answer within {LIMIT:?}"),
                    )),
                }
            })
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn failed(why: impl std::error::Error) -> ServiceError {
    // The driver's own text is only "db error"; the reason is in its source.
    let source = why.source().map(|source| format!(": {source}")).unwrap_or_default();
    ServiceError::failed("PostgreSQL", format!("{why}{source}"))
}

//! Waiting for something that other tasks, threads or servers bring about.

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine before a test calls it lost.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Asks again and again, at first quickly, until there is an answer.
///
/// # Panics
/// If there is none within [`PATIENCE`]; `what` says what was waited for.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

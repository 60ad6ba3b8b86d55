use super::landing::assert_all_settled;
use super::{Both, end};
use crate::script::{Act, Script};
use crate::world::{Terms, by_key, effects, quick};
use relevo_core::Result;
use relevo_core::broker::dead_header;
use relevo_core::dead_letters::DeadFilter;
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(300);

/// As long as RabbitMQ's ladder has a rung for.
const RUNG: Duration = Duration::from_secs(2);

fn left_to_broker(policy: RetryPolicy) -> Terms {
    Terms { at_broker: Some(policy), ..quick().into() }
}

/// Neither the log nor the dead letters of the database know of anything.
async fn assert_nothing_landed(both: &Both<'_>) -> Result<()> {
    assert!(both.world.operate().peek(0, 10).await?.is_empty());
    let letters = both.world.operate().dead_letters(&DeadFilter::default(), None, 10).await?;
    assert!(letters.is_empty(), "{letters:?}");
    Ok(())
}

/// The number of the attempt that a reason tells of.
fn attempt_of(reason: &str) -> usize {
    let number = reason.split("attempt ").nth(1).and_then(|rest| rest.split(':').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{reason}"))
}

/// One delivery, and one after each step; then it is put away where the broker keeps such things.
pub async fn what_fails_is_tried_again_by_the_broker_and_ends_in_its_dead_letters(
    both: &Both<'_>,
) -> Result<()> {
    let script = Script::new(|event, _| match event.payload == "bad" {
        true => Act::Fail("the printer is on fire"),
        false => Act::Done,
    });
    let terms = left_to_broker(RetryPolicy::ladder([STEP, STEP]));
    let consuming = both.consume_on(both.subscriber()?, terms, &script).await;
    let bad = both.event("k", "bad");
    both.store(std::slice::from_ref(&bad)).await;
    let letter = eventually("the dead letter", async || both.broker.dead().await.ok()?.pop()).await;
    assert_eq!(letter.payload, b"bad");
    let reason = letter.text(dead_header::REASON).unwrap_or_default();
    assert!(reason.contains("on fire"), "{reason}");
    let (asked, delivered) = (script.attempts(bad.id), attempt_of(&reason));
    // A delivery is an attempt. NATS may deliver to a pull that has ended: nobody was asked then.
    let unheard = delivered - asked;
    assert!(delivered >= 3 && (unheard == 0 || both.broker.name() == "nats"), "{asked}: {reason}");
    both.store(&[both.event("k", 1), both.event("k", 2)]).await;
    assert_eq!(by_key(&effects(&*both.world, 2).await)["k"], ["1", "2"]);
    end(consuming).await;
    assert_eq!(both.broker.dead().await?.len(), 1);
    assert_nothing_landed(both).await
}

/// Elsewhere what followed it takes effect meanwhile.
pub async fn a_retry_keeps_its_place_where_the_broker_says_so_and_only_there(
    both: &Both<'_>,
) -> Result<()> {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = mended.clone();
    let script = Script::new(move |event, _| match event.payload == "0" {
        true if !seen.load(Ordering::SeqCst) => Act::Fail("not yet"),
        _ => Act::Done,
    });
    let terms = left_to_broker(RetryPolicy::linear(STEP, STEP).max_attempts(1_000_000));
    let consuming = both.consume_on(both.subscriber()?, terms, &script).await;
    let events: Vec<_> = (0..3).map(|n| both.event("k", n)).collect();
    both.store(&events).await;
    let keeps = both.broker.capabilities().order_on_retry;
    if !keeps {
        effects(&*both.world, 2).await;
    }
    let tried = || script.attempts(events[0].id) > 4;
    eventually("some attempts", async || tried().then_some(())).await;
    assert_eq!(both.world.effects().await.len(), if keeps { 0 } else { 2 });
    mended.store(true, Ordering::SeqCst);
    let rows = effects(&*both.world, 3).await;
    let order = if keeps { ["0", "1", "2"] } else { ["1", "2", "0"] };
    assert_eq!(by_key(&rows)["k"], order);
    end(consuming).await;
    assert_nothing_landed(both).await
}

/// By a ladder of queues in RabbitMQ. It waits there, and not in who failed: another gets it, and no earlier.
pub async fn what_waits_at_the_broker_is_overtaken_by_its_key_and_takes_effect_once(
    both: &Both<'_>,
) -> Result<()> {
    let script = Script::new(|event, attempt| match event.payload == "0" && attempt == 1 {
        true => Act::Fail("not yet"),
        false => Act::Done,
    });
    // A transaction for each message: one that they share would ask again at once, each alone.
    let script = script.slow();
    let subscriber = both.delaying()?;
    let can = subscriber.capabilities();
    assert!(can.delays_at_broker && !can.order_on_retry, "{can:?}");
    let events: Vec<_> = (0..2).map(|n| both.event("k", n)).collect();
    both.store(&events).await;
    let terms = || left_to_broker(RetryPolicy::ladder([RUNG, RUNG, RUNG]));
    let first = both.consume_on(subscriber.clone(), terms(), &script).await;
    let is_there = async || !both.world.effects().await.is_empty();
    eventually("an effect", async || is_there().await.then_some(())).await;
    end(first).await;
    let second = both.consume_on(subscriber, terms(), &script).await;
    let rows = effects(&*both.world, 2).await;
    assert_eq!(by_key(&rows)["k"], ["1", "0"], "order is lost, as the broker says");
    end(second).await;
    let asked = script.times(events[0].id);
    assert!(asked.len() == 2 && asked[1] - asked[0] >= RUNG, "{asked:?}");
    assert_eq!(script.attempts(events[1].id), 1);
    assert_all_settled(both).await;
    assert_eq!(both.world.effects().await, rows, "nothing twice");
    assert!(both.broker.dead().await?.is_empty());
    assert_nothing_landed(both).await
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// And nothing where it is kept, or where what fails lands.
pub async fn a_consumer_says_at_its_start_that_order_is_not_kept(both: &Both<'_>) -> Result<()> {
    let ladder = || left_to_broker(RetryPolicy::ladder([STEP]));
    for (terms, left) in [(ladder(), true), (quick().into(), false)] {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let listening = tracing::subscriber::set_default(lines.finish());
        let consuming = both.consume_on(both.subscriber()?, terms, &Script::done()).await;
        drop(listening);
        let warned = left && !both.broker.capabilities().order_on_retry;
        let text = log.text();
        let said = text.lines().any(|line| {
            let words = ["WARN", "later messages of its key are worked before it", "once"];
            words.iter().all(|word| line.contains(word)) && line.contains(both.broker.name())
        });
        assert_eq!(said, warned, "{text}");
        end(consuming).await;
    }
    Ok(())
}

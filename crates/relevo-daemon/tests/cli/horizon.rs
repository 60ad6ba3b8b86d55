//! What was done and whose proof is gone is not brought again unasked.

use crate::support::{Destination, Scratch, block_on, eventually};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::Subscription;
use relevo_core::relay::AfterDead;
use relevo_core::retry::RetryPolicy;
use relevo_stores::sqlite::first_time;
use std::time::Duration;

/// A store that forgets at once what nobody needs any more.
fn forgetful() -> Scratch {
    let scratch = Scratch::with_store();
    let config = std::fs::read_to_string(scratch.path("relevo.toml")).unwrap();
    let short = "[retention]\nevents = \"1ms\"\ndead_letters = \"1ms\"\ninbox = \"2ms\"\n";
    scratch.write("relevo.toml", format!("{config}\n{short}"));
    scratch
}

/// A consumer did this event; then its inbox row goes.
fn done_and_forgotten(scratch: &Scratch, event: &str) {
    let mut file = rusqlite::Connection::open(scratch.path("relevo.db")).unwrap();
    let tx = file.transaction().unwrap();
    assert!(first_time(&tx, "mailer", "shop", event).unwrap());
    tx.commit().unwrap();
    // A row must be older than two milliseconds.
    let count = "SELECT count(*) FROM relevo_inbox";
    let rows = || file.query_row(count, [], |row| row.get::<_, i64>(0));
    let gone = || {
        scratch.ok(&["retention", "--apply"]);
        rows().unwrap() == 0
    };
    assert!((0..50).any(|_| gone()), "the row stays");
}

/// An event of a held key that died.
fn let_one_die_and_hold_its_key(scratch: &Scratch) -> String {
    let event = scratch.publish("order.placed", "order-1", "1");
    let refused = Confirm::Refused { class: ErrorClass::Poison, error: "422".into(), after: None };
    block_on(async {
        let held = Subscription::new("billing").after_dead(AfterDead::Hold);
        let once = RetryPolicy::default().max_attempts(1);
        let running = scratch.start_as(held, Destination::Answers(refused), once).await;
        eventually(&scratch.store(), async |store| {
            let status = store.status().await.unwrap();
            let it = &status.subscriptions[0];
            (it.dead_letters, it.parked_keys, it.backlog) == (1, 1, 0)
        })
        .await;
        running.stop(Duration::from_secs(10)).await.unwrap();
    });
    event
}

#[test]
fn what_would_be_done_twice_is_refused_unless_somebody_insists() {
    let scratch = forgetful();
    let event = scratch.publish("order.placed", "order-1", "1");
    scratch.ok(&["subscriptions", "add", "slow"]);
    scratch.deliver("billing");
    done_and_forgotten(&scratch, &event);
    let rewind = ["subscriptions", "rewind", "billing", "--to", "beginning", "--yes"];
    let refused = scratch.fails(5, &rewind);
    for part in [
        "error R0042 (sqlite)",
        &event,
        "are gone",
        "--even-if-done-before",
        "relevo explain R0042",
    ] {
        assert!(refused.contains(part), "{part}\n{refused}");
    }
    let backlog = || {
        let all = scratch.json(&["subscriptions", "list"]);
        let it = all.as_array().unwrap().iter().find(|it| it["name"] == "billing").unwrap();
        it["backlog"].as_i64().unwrap()
    };
    assert_eq!(backlog(), 0, "nothing was moved");
    scratch.ok(&[&rewind[..], &["--even-if-done-before"]].concat());
    assert_eq!(backlog(), 1);
    // What nobody handed outside is rewound as ever.
    scratch.ok(&["subscriptions", "rewind", "slow", "--to", "beginning", "--yes"]);
    assert!(scratch.ok(&["explain", "R0042"]).contains("--even-if-done-before"));
}

#[test]
fn a_dead_letter_that_may_have_been_done_long_ago_is_replayed_only_for_who_insists() {
    let scratch = forgetful();
    let event = let_one_die_and_hold_its_key(&scratch);
    done_and_forgotten(&scratch, &event);
    let replay = ["dead-letters", "replay", "--all", "--yes"];
    let refused = scratch.fails(5, &replay);
    assert!(refused.contains("error R0042 (sqlite)"), "{refused}");
    assert!(refused.contains("dead letter 1, published at 20"), "{refused}");
    let json = scratch.fails(5, &[&replay[..], &["--json"]].concat());
    assert!(json.contains(r#""code":"R0042""#), "{json}");
    let dead = |state: &str| scratch.json(&["dead-letters", "list", "--state", state]);
    assert_eq!(dead("dead").as_array().unwrap().len(), 1, "nothing was asked for");
    let told = scratch.ok(&[&replay[..], &["--even-if-done-before"]].concat());
    assert!(told.contains("1 dead letter to be put back"), "{told}");
    assert_eq!(dead("requested").as_array().unwrap().len(), 1);
}

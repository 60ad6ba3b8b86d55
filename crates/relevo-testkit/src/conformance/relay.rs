//! Leases: a lane has one owner at a time, and whoever lost it changes nothing.

use super::hand::MEMBER;
use super::rig::{fresh_token, numbered};
use super::{Hand, Rig};
use relevo_core::limits::LANES;
use relevo_core::outbox::{Claim, Fleet, Lease, MemberId, Position, Subscription};
use relevo_core::{Kind, Result};

fn lease(fleet: &Fleet, lane: u16) -> Lease {
    let found = fleet.leases.iter().find(|lease| lease.lane == lane);
    assert!(found.is_some(), "the fleet names every lane");
    found.cloned().unwrap_or(Lease { lane, owner: None, token: 0, position: Position::default() })
}

fn member(name: &str) -> MemberId {
    MemberId(name.into())
}

/// A lane is taken by swapping the token that was seen.
pub async fn a_lane_is_taken_only_with_the_token_that_was_seen(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let seen = lease(&rig.beat("s", "a").await?, 5);
    assert_eq!(seen.owner, None);
    let first = Claim { lane: 5, seen: seen.token, fresh: fresh_token() };
    let second = Claim { fresh: fresh_token(), ..first };
    assert_eq!(rig.store.take_lanes("s", &[first], &member("a"), 10).await?.len(), 1);
    assert!(
        rig.store.take_lanes("s", &[second], &member("b"), 10).await?.is_empty(),
        "the token seen is no longer in force"
    );
    let now = lease(&rig.beat("s", "b").await?, 5);
    assert_eq!((now.owner, now.token), (Some(member("a")), first.fresh));
    let third = Claim { seen: now.token, ..second };
    assert_eq!(
        rig.store.take_lanes("s", &[third], &member("b"), 10).await?.len(),
        1,
        "with the new one it works"
    );
    Ok(())
}

/// Of several claims those that match are got.
pub async fn a_take_of_several_lanes_gets_those_that_still_match(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let claims: Vec<Claim> = rig.beat("s", "a").await?.leases[..4]
        .iter()
        .map(|lease| Claim {
            lane: lease.lane,
            seen: lease.token + i64::from(lease.lane % 2),
            fresh: fresh_token(),
        })
        .collect();
    let mut got: Vec<u16> = rig
        .store
        .take_lanes("s", &claims, &member("a"), 10)
        .await?
        .into_iter()
        .map(|(lane, _)| lane)
        .collect();
    got.sort_unstable();
    assert_eq!(got, [0, 2]);
    Ok(())
}

/// Of many that take a lane at the same time one gets it.
pub async fn of_many_that_take_a_lane_at_once_one_gets_it(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let seen = lease(&rig.beat("s", "a").await?, 9).token;
    let take = |n: usize| {
        let store = rig.store.clone();
        let claim = Claim { lane: 9, seen, fresh: fresh_token() };
        tokio::spawn(
            async move { store.take_lanes("s", &[claim], &member(&format!("m{n}")), 10).await },
        )
    };
    let mut winners = 0;
    for task in (0..8).map(take).collect::<Vec<_>>() {
        winners += task.await.unwrap_or_else(|error| panic!("a take panicked: {error}"))?.len();
    }
    assert_eq!(winners, 1);
    Ok(())
}

/// A lane loads under the token in force and under no other.
pub async fn a_lane_loads_only_under_the_token_in_force(rig: &Rig) -> Result<()> {
    let hand = rig.migrated().await?.hand("s", "k").await?;
    assert!(rig.store.load_lane(&hand.lane, hand.token, 10).await?.is_some());
    let heir = Hand::take(rig, hand.lane.clone()).await?;
    assert_eq!(rig.store.load_lane(&hand.lane, hand.token, 10).await?, None);
    assert!(rig.store.load_lane(&heir.lane, heir.token, 10).await?.is_some());
    Ok(())
}

/// A lane given back is nobody's, at once; its old token is void.
pub async fn a_released_lane_is_nobodys_and_its_token_is_void(rig: &Rig) -> Result<()> {
    let hand = rig.migrated().await?.hand("s", "k").await?;
    let claim = Claim { lane: hand.lane.lane, seen: hand.token, fresh: fresh_token() };
    rig.store.release_lanes("s", &[claim]).await?;
    let now = lease(&rig.beat("s", "b").await?, hand.lane.lane);
    assert_eq!((now.owner, now.token), (None, claim.fresh));
    assert_eq!(rig.store.load_lane(&hand.lane, hand.token, 10).await?, None);
    Ok(())
}

/// Whoever lost a lane cannot give it away.
pub async fn a_release_with_an_old_token_is_passed_over(rig: &Rig) -> Result<()> {
    let hand = rig.migrated().await?.hand("s", "k").await?;
    let heir = Hand::take(rig, hand.lane.clone()).await?;
    rig.store
        .release_lanes(
            "s",
            &[Claim { lane: hand.lane.lane, seen: hand.token, fresh: fresh_token() }],
        )
        .await?;
    let now = lease(&rig.beat("s", MEMBER).await?, hand.lane.lane);
    assert_eq!((now.owner, now.token), (Some(member(MEMBER)), heir.token));
    Ok(())
}

/// A beat counts by one and shows everybody.
pub async fn beats_are_counted_and_show_everybody(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let count = |fleet: &Fleet, name: &str| {
        fleet.members.iter().find(|(m, _)| *m == member(name)).map(|(_, beat)| *beat)
    };
    let first = rig.beat("s", "a").await?;
    assert_eq!(first.leases.len(), usize::from(LANES));
    assert!(first.leases.windows(2).all(|two| two[0].lane < two[1].lane), "leases come by lane");
    assert!(!first.paused && !first.removed && first.requests.is_empty());
    rig.beat("s", "b").await?;
    let third = rig.beat("s", "a").await?;
    assert_eq!(count(&third, "a"), count(&first, "a").map(|beat| beat + 1));
    let last = rig.beat("s", "b").await?;
    assert_eq!(count(&last, "a"), count(&third, "a"), "a beat of one is no beat of another");
    assert_eq!(last.members.len(), 2);
    Ok(())
}

/// Members of one subscription are not members of another.
pub async fn subscriptions_have_their_own_members_and_leases(rig: &Rig) -> Result<()> {
    let hand = rig.migrated().await?.hand("one", "k").await?;
    rig.store.subscribe(&Subscription::new("two")).await?;
    let fleet = rig.beat("two", "b").await?;
    assert_eq!(fleet.members.len(), 1);
    assert_eq!(lease(&fleet, hand.lane.lane).owner, None);
    Ok(())
}

/// A member that is forgotten is gone from the fleet.
pub async fn a_forgotten_member_is_gone(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    rig.beat("s", "a").await?;
    rig.store.forget_member("s", &member("a")).await?;
    rig.store.forget_member("s", &member("never-there")).await?;
    assert_eq!(
        rig.beat("s", "b").await?.members.iter().map(|(m, _)| m.clone()).collect::<Vec<_>>(),
        [member("b")]
    );
    Ok(())
}

/// A subscription that nobody made is reported as removed; no lane of it can be had.
pub async fn an_unknown_subscription_gives_no_lanes(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let fleet = rig.beat("nobody's", "a").await?;
    assert!(fleet.removed && fleet.leases.is_empty(), "{fleet:?}");
    let claim = Claim { lane: 1, seen: 0, fresh: fresh_token() };
    assert!(rig.store.take_lanes("nobody's", &[claim], &member("a"), 10).await?.is_empty());
    for refused in [
        rig.operate.pause("nobody's", "me").await,
        rig.operate.resume("nobody's").await,
        rig.operate.rewind("nobody's", relevo_core::outbox::Start::Beginning).await,
        rig.operate.remove("nobody's").await,
    ] {
        assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::UnknownSubscription));
    }
    Ok(())
}

/// Subscribing again changes what it wants and where it goes, and leaves its cursors and leases alone.
pub async fn subscribing_again_leaves_cursors_and_leases_alone(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit_one(numbered("k", 1)).await?;
    hand.read(1).await?;
    hand.record(hand.change()).await?;
    let topics = vec![relevo_core::event::TopicFilter::parse("ticket.*")?];
    rig.store.subscribe(&Subscription::new("s").topics(topics).destination("elsewhere")).await?;
    assert_eq!(hand.load().await?.position, hand.position);
    let status = rig.status("s").await?;
    assert_eq!(
        (status.topics, status.destination),
        (vec!["ticket.*".to_owned()], "elsewhere".to_owned())
    );
    Ok(())
}

/// Names are data: a hostile subscription or member name works like any other.
pub async fn hostile_names_of_subscriptions_and_members_are_only_names(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    for name in super::event::HOSTILE {
        rig.store.subscribe(&Subscription::new(*name).destination(*name)).await?;
        let fleet = rig.beat_with(name, name, "{\"breaker\": null}").await?;
        assert_eq!(fleet.members, [(member(name), 1)]);
        let claim = Claim { lane: 3, seen: lease(&fleet, 3).token, fresh: fresh_token() };
        assert_eq!(rig.store.take_lanes(name, &[claim], &member(name), 10).await?.len(), 1);
        assert_eq!(rig.status(name).await?.lanes_owned, 1);
    }
    Ok(())
}

use super::{Hand, StoreUnderTest, Writer};
use crate::PATIENCE;
use relevo_core::Result;
use relevo_core::dead_letters::{DeadFilter, DeadLetter, Operate, SubscriptionStatus, Why};
use relevo_core::event::{Event, EventId, NewEvent, lane_of};
use relevo_core::limits::LANES;
use relevo_core::outbox::{
    Beat, Claim, Fleet, LaneChange, LaneId, MemberId, Page, PageRequest, Position, Row, Store,
    Subscription, Token,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A fresh store and what the cases do with it.
pub struct Rig {
    /// The store's own handles and transactions.
    pub under_test: Box<dyn StoreUnderTest>,
    /// The port the relay works through.
    pub store: Arc<dyn Store>,
    /// The port operators work through.
    pub operate: Arc<dyn Operate>,
}

impl Rig {
    pub(super) fn new(under_test: Box<dyn StoreUnderTest>) -> Self {
        Self { store: under_test.store(), operate: under_test.operate(), under_test }
    }

    /// Brings the schema up, as most cases begin.
    pub async fn migrated(&self) -> Result<&Self> {
        self.operate.migrate().await?;
        self.store.probe().await?;
        Ok(self)
    }

    /// Begins a transaction of an application.
    pub async fn begin(&self) -> Result<Box<dyn Writer>> {
        self.under_test.begin().await
    }

    /// Publishes events in a transaction of their own and commits.
    pub async fn commit(&self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        let mut writer = self.begin().await?;
        let ids = writer.publish(events).await?;
        writer.commit().await?;
        Ok(ids)
    }

    /// Publishes one event and commits.
    pub async fn commit_one(&self, event: NewEvent) -> Result<EventId> {
        let id = event.id;
        self.commit(vec![event]).await?;
        Ok(id)
    }

    /// Signs life for a member.
    pub async fn beat(&self, subscription: &str, member: &str) -> Result<Fleet> {
        self.beat_with(subscription, member, "{}").await
    }

    /// Signs life for a member, with a note.
    pub async fn beat_with(&self, subscription: &str, member: &str, note: &str) -> Result<Fleet> {
        let beat = Beat {
            subscription: subscription.into(),
            member: MemberId(member.into()),
            note: note.to_owned(),
        };
        self.store.beat(&beat).await
    }

    /// A reader of every lane of a subscription from the beginning.
    pub async fn reader(&self, name: &str) -> Result<Reader<'_>> {
        self.reader_of(Subscription::new(name)).await
    }

    /// A reader of every lane of a new subscription, which it owns.
    pub async fn reader_of(&self, subscription: Subscription) -> Result<Reader<'_>> {
        self.store.subscribe(&subscription).await?;
        Reader::take(self, &subscription.name).await
    }

    /// The owner of the lane of `key`, in a subscription from the beginning.
    pub async fn hand(&self, name: &str, key: &str) -> Result<Hand<'_>> {
        self.hand_of(Subscription::new(name), key).await
    }

    /// The owner of the lane of `key`.
    pub async fn hand_of(&self, subscription: Subscription, key: &str) -> Result<Hand<'_>> {
        self.store.subscribe(&subscription).await?;
        Hand::take(self, LaneId { subscription: subscription.name, lane: lane_of(key) }).await
    }

    /// Why one event is where it is, for one subscription.
    pub async fn why(&self, event: EventId, subscription: &str) -> Result<Why> {
        match self.operate.why(event).await? {
            relevo_core::dead_letters::Answer::Known { subscriptions, .. } => {
                let found = subscriptions.iter().find(|(name, _)| name == subscription);
                assert!(found.is_some(), "why says nothing of {subscription}: {subscriptions:?}");
                Ok(found.map_or(Why::Delivered, |(_, why)| why.clone()))
            }
            other => panic!("event {event} should be known: {other:?}"),
        }
    }

    /// All dead letters in state dead, newest first.
    pub async fn dead(&self) -> Result<Vec<DeadLetter>> {
        self.operate.dead_letters(&DeadFilter::default(), None, 1000).await
    }

    /// One subscription's status.
    pub async fn status(&self, subscription: &str) -> Result<SubscriptionStatus> {
        let status = self.operate.status().await?;
        let found = status.subscriptions.iter().find(|status| status.name == subscription);
        assert!(found.is_some(), "status does not list {subscription}: {status:?}");
        Ok(found.cloned().unwrap_or_else(|| SubscriptionStatus::named(subscription)))
    }

    /// Waits until the moment has passed by some milliseconds, on this machine's clock.
    pub async fn let_time_pass(&self) {
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// Reads every lane of a subscription in step.
pub struct Reader<'r> {
    rig: &'r Rig,
    /// What it reads through: the rig's own store, or another process's.
    pub store: Arc<dyn Store>,
    /// The subscription.
    pub name: Arc<str>,
    /// The token of each lane.
    pub tokens: BTreeMap<u16, Token>,
    /// What is durable of each lane.
    pub recorded: BTreeMap<u16, Position>,
    /// Where the reader stands.
    pub position: Position,
}

impl<'r> Reader<'r> {
    async fn take(rig: &'r Rig, name: &Arc<str>) -> Result<Self> {
        let fleet = rig.beat(name, "reader").await?;
        assert_eq!(fleet.leases.len(), usize::from(LANES), "every lane has a lease");
        let claims: Vec<Claim> = fleet
            .leases
            .iter()
            .map(|lease| Claim { lane: lease.lane, seen: lease.token, fresh: fresh_token() })
            .collect();
        let taken = rig.store.take_lanes(name, &claims, &MemberId("reader".into()), 100).await?;
        assert_eq!(taken.len(), claims.len(), "every lane can be taken");
        let recorded: BTreeMap<u16, Position> =
            taken.into_iter().map(|(lane, state)| (lane, state.position)).collect();
        let position = recorded.values().next().copied().unwrap_or_default();
        assert!(recorded.values().all(|other| *other == position), "the lanes stand in step");
        let tokens = claims.iter().map(|claim| (claim.lane, claim.fresh)).collect();
        let store = rig.store.clone();
        Ok(Self { rig, store, name: name.clone(), tokens, recorded, position })
    }

    /// Reads one page of every lane and stands after it.
    pub async fn page(&mut self, max_rows: usize) -> Result<Page> {
        self.page_of(max_rows, usize::MAX >> 1).await
    }

    /// Reads one page, also bounded by bytes.
    pub async fn page_of(&mut self, max_rows: usize, max_bytes: usize) -> Result<Page> {
        let lanes = (0..LANES).collect();
        let request = PageRequest { position: self.position, lanes, max_rows, max_bytes };
        let page = self.store.read_page(&request).await?;
        assert!(page.rows.len() <= max_rows, "a page has at most as many rows as asked for");
        assert!(
            page.rows.windows(2).all(|two| two[0].seq < two[1].seq),
            "rows come in the order of seq"
        );
        if page.to.is_none() {
            assert!(
                page.rows.is_empty() && page.end == self.position,
                "a page without a window moves nothing: {page:?}"
            );
        }
        self.position = page.end;
        Ok(page)
    }

    /// Reads pages until all of these events came and their window is done; answers with every row on the way.
    pub async fn until(&mut self, wanted: &[EventId], max_rows: usize) -> Result<Vec<Row>> {
        let began = Instant::now();
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let page = self.page(max_rows).await?;
            let quiet = page.to.is_none();
            rows.extend(page.rows);
            let all = wanted.iter().all(|id| rows.iter().any(|row| row.event.id == *id));
            if all && self.position.to.is_none() {
                return Ok(rows);
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{wanted:?} should be read, but only {:?} came",
                ids(&rows)
            );
            if quiet {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Publishes a last event and reads until it came: whatever was committed before has come by then.
    pub async fn rest(&mut self) -> Result<Vec<Row>> {
        let last = self.rig.commit_one(NewEvent::bytes("the.last", "")).await?;
        let mut rows = self.until(&[last], 100).await?;
        rows.retain(|row| row.event.id != last);
        Ok(rows)
    }

    /// Writes down, for every lane, that all that was read is decided.
    pub async fn record(&mut self) -> Result<()> {
        let change = |(lane, before): (&u16, &Position)| {
            let id = LaneId { subscription: self.name.clone(), lane: *lane };
            LaneChange::moving(id, self.tokens[lane], *before, self.position)
        };
        let changes: Vec<LaneChange> = self.recorded.iter().map(change).collect();
        self.rig.store.record(&changes).await?;
        self.recorded.values_mut().for_each(|recorded| *recorded = self.position);
        Ok(())
    }
}

/// A token nobody has.
pub(super) fn fresh_token() -> Token {
    (uuid::Uuid::new_v4().as_u64_pair().0 >> 1).max(1) as Token
}

/// The ids of rows, in their order.
pub(super) fn ids(rows: &[Row]) -> Vec<EventId> {
    rows.iter().map(|row| row.event.id).collect()
}

/// An event of a key, numbered in its payload.
pub(super) fn numbered(key: &str, n: usize) -> NewEvent {
    NewEvent::bytes("thing.happened", n.to_string()).key(key)
}

/// So many different keys of the same lane as `key`, itself included.
pub(super) fn keys_beside(key: &str, n: usize) -> Vec<String> {
    let others =
        (0u32..).map(|i| format!("beside-{i}")).filter(|other| lane_of(other) == lane_of(key));
    std::iter::once(key.to_owned()).chain(others).take(n).collect()
}

/// Fails unless the event carries exactly what was published.
pub(super) fn assert_same(event: &Event, published: &NewEvent) {
    let read = (event.id, &event.topic, &event.key, &event.payload, &event.headers);
    assert_eq!(
        read,
        (published.id, &published.topic, &published.key, &published.payload, &published.headers)
    );
}

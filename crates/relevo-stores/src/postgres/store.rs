//! The port through which the relay works this store; each method is written where its name says.

use super::PostgresStore;
use super::errors::ADAPTER;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use tokio::sync::watch;

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        ADAPTER
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        can.concurrent_writers = true;
        can.shared_by_processes = true;
        can.doorbell = true;
        can.parallel_effects = true;
        can.publish_by_sql = true;
        can.durable = true;
        can.direct_effects = true;
        can.own_log = true;
        can.key_order = true;
        can
    }

    async fn probe(&self) -> Result<Probe> {
        self.look_around().await
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        self.subscribe_to(subscription).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        self.sign_life(beat).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        self.take(subscription, claims, member, max_parked).await
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        self.load_one(lane, token, max_parked).await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        self.release(subscription, claims).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        self.page(request).await
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        self.parked_events(lane, key, max_rows).await
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        self.record_changes(changes).await
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        self.inner.doorbell.listen()
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        self.keep_up(retention).await
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        self.forget(subscription, member).await
    }
}

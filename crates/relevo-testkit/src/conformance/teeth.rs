//! The suite for stores has teeth: a store that is wrong in one of these ways fails at least one case.

use super::{StoreHarness, StoreUnderTest, Writer, run};
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::mutants::{Mutant, activate};
use relevo_core::outbox::{PublishIn, Store};
use relevo_stores::memory::{MemoryStore, MemoryTransaction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

struct Memory(MemoryStore);
struct Harness;
struct Transaction(MemoryStore, MemoryTransaction);

#[async_trait]
impl StoreHarness for Harness {
    async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>> {
        Some(Box::new(Memory(MemoryStore::new())))
    }
}

#[async_trait]
impl StoreUnderTest for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.0.clone())
    }

    async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)> {
        Ok((self.store(), self.operate()))
    }

    async fn begin(&self) -> Result<Box<dyn Writer>> {
        Ok(Box::new(Transaction(self.0.clone(), self.0.begin())))
    }

    async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool> {
        let mut tx = self.0.begin();
        let first = tx.first_time(consumer, source, id).await?;
        tx.commit().map(|()| first)
    }
}

#[async_trait]
impl Writer for Transaction {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        self.0.outbox().publish_all(&mut self.1, events).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.1.commit()
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.1.rollback();
        Ok(())
    }
}

/// Every case with its name.
macro_rules! table {
    ([] $($group:ident { $($case:ident $(: $($need:ident)&&+)?,)* })*) => {
        const CASES: &[(&str, fn())] = &[$($((
            concat!(stringify!($group), "::", stringify!($case)),
            || run(&Harness, stringify!($case), None, super::$group::$case),
        ),)*)*];
    };
}

crate::store_cases! { [table] }

/// Not among them: what needs two transactions between two statements of one reader, which only the simulator has.
const MUTANTS: [Mutant; 10] = [
    Mutant::NaiveSequence,
    Mutant::NoBurntXid,
    Mutant::NoLateRows,
    Mutant::WindowEndsElsewhere,
    Mutant::OnlyLastValueRings,
    Mutant::RetentionByCursor,
    Mutant::RefsLoseTheirBytes,
    Mutant::NoFence,
    Mutant::FenceIgnored,
    Mutant::TakeWithoutSwap,
];

/// Needs a second process, which memory has not.
const NOT_FOR_MEMORY: &str = "outbox::another_process_reads_the_same_log";

/// The first case that fails while the mutant is in force.
fn killed_by(mutant: Option<Mutant>) -> Option<&'static str> {
    activate(mutant);
    let mut cases = CASES.iter().filter(|(name, _)| *name != NOT_FOR_MEMORY);
    let failed = cases.find(|(_, case)| catch_unwind(AssertUnwindSafe(case)).is_err());
    activate(None);
    failed.map(|(name, _)| *name)
}

/// Runs the suite over each of them, and over the right store; prints which case noticed. False if none did, or if the
/// right store fails one.
pub fn store_suite_has_teeth() -> bool {
    // A mutant is in force on one thread; many die only by a wait in vain, so they wait side by side.
    let all: Vec<Option<Mutant>> = MUTANTS.into_iter().map(Some).chain([None]).collect();
    let verdicts = std::thread::scope(|scope| {
        let running: Vec<_> = all.iter().map(|mutant| scope.spawn(|| killed_by(*mutant))).collect();
        running.into_iter().map(|verdict| verdict.join().ok().flatten()).collect::<Vec<_>>()
    });
    let mut fine = true;
    for (mutant, case) in all.iter().zip(verdicts) {
        fine &= mutant.is_some() == case.is_some();
        let name = mutant.map_or("(none)", Mutant::name);
        println!(
            "{name:<24} {}",
            case.map_or("passes every case".into(), |case| format!("fails {case}"))
        );
    }
    fine
}

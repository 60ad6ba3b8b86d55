//! The suite for stores has teeth: a store that is wrong in one of these ways fails at least one case.
#![cfg(feature = "mutants")]

use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::mutants::{Mutant, activate};
use relevo_core::outbox::{PublishIn, Store};
use relevo_stores::memory::{MemoryStore, MemoryTransaction};
use relevo_testkit::conformance::{self, StoreHarness, StoreUnderTest, Writer};
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
    ([] $($group:ident { $($case:ident $(: $need:ident)?,)* })*) => {
        const CASES: &[(&str, fn())] = &[$($((
            concat!(stringify!($group), "::", stringify!($case)),
            || conformance::run(&Harness, stringify!($case), None, conformance::$group::$case),
        ),)*)*];
    };
}

relevo_testkit::store_cases! { [table] }

/// The first case that fails while the mutant is in force.
fn killed_by(mutant: Option<Mutant>) -> Option<&'static str> {
    activate(mutant);
    let failed = CASES.iter().find(|(_, case)| catch_unwind(AssertUnwindSafe(case)).is_err());
    activate(None);
    failed.map(|(name, _)| *name)
}

#[test]
fn a_store_that_is_right_passes_every_case() {
    let skipped_by_need = "outbox::another_process_reads_the_same_log";
    assert_eq!(killed_by(None).filter(|name| *name != skipped_by_need), None);
}

/// Not among them: what needs two transactions between two statements of one reader, which only the simulator has.
#[test]
fn a_store_that_is_wrong_fails_a_case() {
    let mutants = [
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
    // A mutant is in force on one thread; many die only by a wait in vain, so they wait side by side.
    let verdicts: Vec<_> =
        mutants.map(|mutant| std::thread::spawn(move || killed_by(Some(mutant)))).into();
    let mut survivors = Vec::new();
    for (mutant, verdict) in mutants.into_iter().zip(verdicts) {
        match verdict.join().expect("only a case panics, and that is caught") {
            Some(case) => println!("{:<20} killed by {case}", mutant.name()),
            None => survivors.push(mutant.name()),
        }
    }
    assert!(survivors.is_empty(), "no case notices: {survivors:?}");
}

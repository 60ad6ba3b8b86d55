//! Three nodes that are one server.

use super::node::Node;
use super::{Result, ServiceError};
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Nodes that found each other late, on a busy machine.
const COMPLETE_LIMIT: Duration = Duration::from_secs(420);

/// A cluster of three nodes, by index: `cluster[0].kill9()`. All stop when the value is dropped.
#[derive(Debug)]
pub struct Cluster<S> {
    nodes: Vec<S>,
}

/// A node on its way to serving, while the others are on theirs.
///
/// One that asks another which has only just begun may give up and end (RabbitMQ 3.10 asks for feature flags and crashes
/// if there are none yet), and the others wait for it. Whoever runs servers starts such a one again, and so do we.
struct Starting<'n> {
    node: &'n Node,
    starts: u32,
    deadline: Instant,
}

impl<'n> Starting<'n> {
    const MAX_STARTS: u32 = 5;

    fn new(node: &'n Node) -> Starting<'n> {
        Starting { node, starts: 0, deadline: Instant::now() + node.ready_limit() }
    }

    /// `None` when it serves.
    fn go_on(mut self) -> Result<Option<Starting<'n>>> {
        let failed = |why: &str| {
            ServiceError::failed("Cluster", format!("{why}; its log:\n{}", self.node.log()))
        };
        if !self.node.is_running() {
            if self.starts == Self::MAX_STARTS {
                return Err(failed("a node ends again and again while it starts"));
            }
            self.node.spawn()?;
            self.starts += 1;
        }
        match self.node.try_ready() {
            Ok(()) => Ok(None),
            Err(error) if Instant::now() > self.deadline => {
                Err(failed(&format!("not ready: {error}")))
            }
            Err(_) => Ok(Some(self)),
        }
    }
}

/// A server that can be one of several.
pub trait Member: sealed::Member {}

pub(crate) mod sealed {
    use super::{Node, Result};

    pub trait Member {
        /// Its process.
        fn node(&self) -> &Node;

        /// Whether it sees this many live nodes and a leader where there is one.
        fn sees(&self, nodes: usize) -> Result<()>;
    }
}

impl<S> Deref for Cluster<S> {
    type Target = [S];

    fn deref(&self) -> &[S] {
        &self.nodes
    }
}

impl<S: Member> Cluster<S> {
    pub(crate) const SIZE: usize = 3;

    /// Starts nodes that were prepared to know each other.
    pub(crate) fn start(nodes: Vec<S>) -> Result<Cluster<S>> {
        let cluster = Cluster { nodes };
        cluster.start_all()?;
        Ok(cluster)
    }

    /// Starts nodes one after the other: of those that meet for the first time, the later join the first. All at once
    /// they would have to agree on who is the first.
    pub(crate) fn start_in_turn(nodes: Vec<S>) -> Result<Cluster<S>> {
        nodes.iter().try_for_each(|member| member.node().start())?;
        Cluster::start(nodes)
    }

    /// Starts every node that does not run, all together (after a loss of all, one alone may wait
    /// for the others), and waits until each sees all.
    pub fn start_all(&self) -> Result<()> {
        let mut starting: Vec<Starting<'_>> =
            self.nodes.iter().map(|member| Starting::new(member.node())).collect();
        while !starting.is_empty() {
            starting = starting
                .into_iter()
                .filter_map(|one| one.go_on().transpose())
                .collect::<Result<_>>()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        self.nodes.iter().try_for_each(|member| self.wait_complete(member))
    }

    /// Kills every node, like a power cut of the whole building.
    pub fn kill9_all(&self) {
        self.nodes.iter().for_each(|member| member.node().kill9());
    }

    fn wait_complete(&self, member: &S) -> Result<()> {
        let deadline = Instant::now() + COMPLETE_LIMIT;
        while let Err(error) = member.sees(self.nodes.len()) {
            if Instant::now() > deadline {
                let log = member.node().log();
                return Err(ServiceError::failed("Cluster", format!("{error}; its log:\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

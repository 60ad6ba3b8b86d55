//! People who use the service, by HTTP: new tenants, owners who join, meetings, governance that changes often, and now and
//! then a request that makes no sense.

use super::journal::Acknowledged;
use crate::client::Client;
use crate::tenants::Changed;
use anyhow::{Context, Result};
use chrono::{TimeDelta, Utc};
use hyper::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Requests under way at once.
const AT_ONCE: usize = 8;

const BUILDINGS: [&str; 8] = [
    "Mirador",
    "Los Tilos",
    "Alameda",
    "El Faro",
    "Santa Rosa",
    "La Cumbre",
    "Del Parque",
    "Bellavista",
];

/// The traffic at work.
#[derive(Debug)]
pub struct Traffic {
    tasks: JoinSet<()>,
    under_way: Arc<Semaphore>,
}

#[derive(Clone)]
struct People {
    client: Client,
    acknowledged: Acknowledged,
    tenants: Arc<Mutex<Vec<String>>>,
}

impl Traffic {
    /// So many requests a second to the service at this address.
    pub fn start(api: SocketAddr, rate: u32, acknowledged: Acknowledged) -> Self {
        let people = People { client: Client::to(api), acknowledged, tenants: Arc::default() };
        let under_way = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        tasks.spawn(come(people, rate, under_way.clone()));
        Self { tasks, under_way }
    }

    /// No further requests; those under way are waited for.
    pub async fn stop(mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        // All permits back: nothing is under way. The semaphore is never closed.
        drop(self.under_way.acquire_many(AT_ONCE as u32).await);
    }
}

async fn come(people: People, rate: u32, under_way: Arc<Semaphore>) {
    let mut every = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0u64.. {
        every.tick().await;
        let Ok(permit) = under_way.clone().acquire_owned().await else { return };
        let people = people.clone();
        // Detached: whoever stops the traffic waits for the permits.
        tokio::spawn(async move {
            if let Err(error) = people.ask(n).await {
                tracing::debug!(%error, "a request had no answer");
            }
            drop(permit);
        });
    }
}

impl People {
    async fn ask(&self, n: u64) -> Result<()> {
        let (method, path, body) = self.wish(n);
        let answer = self.client.send(method, &path, Some(body)).await?;
        if !answer.is_done() {
            return Ok(());
        }
        let changed: Changed = serde_json::from_str(&answer.body).context("an odd answer")?;
        self.acknowledged.note(&changed)?;
        if path == "/tenants" {
            self.tenants.lock().unwrap_or_else(PoisonError::into_inner).push(changed.tenant_id);
        }
        Ok(())
    }

    /// What the n-th person wants: the same in every run.
    fn wish(&self, n: u64) -> (Method, String, Value) {
        let dice = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.is_empty() || (tenants.len() < 40 && n.is_multiple_of(7)) {
            let name = format!("Edificio {} {n}", BUILDINGS[n as usize % BUILDINGS.len()]);
            return (Method::POST, "/tenants".into(), json!({ "name": name }));
        }
        // A few tenants have most of the traffic.
        let among = if dice.is_multiple_of(3) { tenants.len() } else { tenants.len().min(5) };
        let path = |what: &str| format!("/tenants/{}{what}", tenants[(dice / 7) as usize % among]);
        match dice % 20 {
            0..=8 => {
                let voting = if n.is_multiple_of(2) { "by_head" } else { "by_share" };
                let governance = json!({ "quorum_percent": 1 + dice % 100, "voting": voting });
                (Method::PUT, path("/governance"), governance)
            }
            9..=13 => {
                let user = json!({ "email": format!("vecino{n}@example.org"), "role": "owner" });
                (Method::POST, path("/users"), user)
            }
            14..=16 => {
                let when = Utc::now() + TimeDelta::days(14);
                let assembly = json!({ "title": format!("Asamblea {n}"), "scheduled_for": when });
                (Method::POST, path("/assemblies"), assembly)
            }
            17 | 18 => {
                (Method::PATCH, path(""), json!({ "name": format!("Edificio renovado {n}") }))
            }
            _ => (
                Method::PUT,
                path("/governance"),
                json!({ "quorum_percent": 101, "voting": "by_head" }),
            ),
        }
    }
}

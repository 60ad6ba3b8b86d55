//! All of it in one process: SQLite, no broker, nothing to install.
//!
//! The service, its relay and the downstream service run as they do elsewhere; only the broker is missing, and the relay
//! calls the downstream service directly. Traffic comes by HTTP. Whatever is broken meanwhile, [`Running::finish`] judges
//! by what it finds: changes joined with their effects, and the journals of those who made them.
//!
//! ```no_run
//! # async fn demo() -> anyhow::Result<()> {
//! use smartedify::embedded::{self, Break, Options};
//! let running = embedded::start(Options::in_folder("demo")).await?;
//! println!("the API, open on loopback: http://{}", running.addresses().api);
//! running.break_it(Break::Twice).await?;
//! let verdict = running.finish(std::time::Duration::from_secs(60)).await?;
//! assert!(verdict.broken.is_empty(), "{:?}", verdict.broken);
//! # Ok(())
//! # }
//! ```
//!
//! - [`traffic`]: who uses the service; [`journal`]: what they and the downstream service note
//! - [`verify`]: the verdict

pub mod journal;
pub mod traffic;
pub mod verify;

pub use proof::Figures;
pub use verify::{Report, Verdict};

use crate::config::admin_token;
use crate::db::Db;
use crate::downstream::direct::{Direct, Trouble};
use crate::downstream::retention;
use crate::http::{Api, follow_broker};
use crate::outbox::cleanup::{self, Keep};
use crate::outbox::{Outbox, Settings, dead_letters};
use crate::tenants::Tenants;
use crate::{metrics, migrate, wall_clock};
use anyhow::{Result, ensure};
use journal::{Acknowledged, Journal};
use metrics_exporter_prometheus::PrometheusHandle;
use relevo::{EventId, RunningRelay};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use traffic::Traffic;

/// How it is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where everything is kept.
    pub folder: PathBuf,
    /// Where the API listens: an address of this machine only, because nobody logs in.
    pub listen: SocketAddr,
    /// Changes a second; 0 leaves the service to others.
    pub rate: u32,
    /// Who may use `/admin`.
    pub admin_token: Option<String>,
    /// The recorder of this process, for `/metrics`; without one that page is empty.
    pub metrics: Option<PrometheusHandle>,
    /// How the outbox is relayed.
    pub settings: Settings,
    /// How long rows stay.
    pub keep: Keep,
}

impl Options {
    /// The usual ones.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            rate: 50,
            admin_token: None,
            metrics: None,
            settings: Settings::default(),
            keep: Keep::default(),
        }
    }
}

/// Where it can be reached.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The API.
    pub api: SocketAddr,
}

/// What can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Break {
    /// A change whose event makes no sense: it ends in outbox_events_dlq
    Poison,
    /// The downstream service fails; until mended
    Fail,
    /// The downstream service cannot be reached; until mended
    Down,
    /// An effect takes place and its answer is lost: the event is sent twice
    Twice,
    /// The relay is ended without a word and another one takes over
    Relay,
}

/// The system at work.
pub struct Running {
    addresses: Addresses,
    parts: Parts,
    relay: Mutex<RunningRelay>,
    traffic: Option<Traffic>,
    _server: JoinSet<()>,
}

/// What a relay of it is made of.
struct Parts {
    service: Db,
    downstream: Db,
    outbox: Outbox,
    tenants: Tenants,
    settings: Settings,
    trouble: Arc<Trouble>,
    attempts: Journal,
    acknowledged: Acknowledged,
}

impl Parts {
    async fn relay(&self) -> Result<RunningRelay> {
        let direct = Direct::to(self.downstream.clone())
            .noting(self.attempts.clone())
            .troubled_by(self.trouble.clone());
        let member = format!("relay-{}", EventId::fresh());
        Ok(self.outbox.relay(&member, &self.settings, Box::new(direct)).await?)
    }
}

/// Starts it, with its traffic.
pub async fn start(options: Options) -> Result<Running> {
    let address = options.listen;
    ensure!(address.ip().is_loopback(), "{address}: the open API is for this machine only");
    std::fs::create_dir_all(&options.folder)?;
    let parts = open(&options).await?;
    let relay = parts.relay().await?;
    let (down, broker_down) = watch::channel(false);
    follow_broker(&relay, down);
    let api = Api {
        tenants: parts.tenants.clone(),
        db: parts.service.clone(),
        outbox: parts.outbox.clone(),
        metrics: options.metrics.clone(),
        admin_token: admin_token(options.admin_token.as_deref()),
        broker_down,
    };
    let listener = TcpListener::bind(options.listen).await?;
    let addresses = Addresses { api: listener.local_addr()? };
    let mut server = JoinSet::new();
    if let Some(handle) = options.metrics {
        server.spawn(metrics::run(parts.service.clone(), handle, metrics::EVERY));
    }
    clean_up(&mut server, &parts, options.keep);
    server.spawn(async move {
        if let Err(error) = axum::serve(listener, api.router()).await {
            tracing::error!(%error, "the API is no longer served");
        }
    });
    let acknowledged = parts.acknowledged.clone();
    let traffic =
        (options.rate > 0).then(|| Traffic::start(addresses.api, options.rate, acknowledged));
    Ok(Running { addresses, parts, relay: Mutex::new(relay), traffic, _server: server })
}

/// What is older than its retention goes, on both sides.
fn clean_up(tasks: &mut JoinSet<()>, parts: &Parts, keep: Keep) {
    let (service, downstream) = (parts.service.clone(), parts.downstream.clone());
    tasks.spawn(cleanup::run(service, wall_clock(), keep, cleanup::EVERY));
    tasks.spawn(retention::run(downstream, wall_clock(), keep.processed, cleanup::EVERY));
}

async fn open(options: &Options) -> Result<Parts> {
    let url = |name: &str| format!("sqlite:{}", options.folder.join(name).display());
    let (service, downstream) =
        (Db::open(&url("tenants.db")).await?, Db::open(&url("directory.db")).await?);
    migrate::tenants(&service).await?;
    migrate::downstream(&downstream).await?;
    Ok(Parts {
        outbox: Outbox::adopt(&url("tenants.db")).await?,
        tenants: Tenants::on(service.clone()),
        service,
        downstream,
        settings: options.settings.clone(),
        trouble: Arc::default(),
        attempts: Journal::open(&options.folder.join("attempts.log"))?,
        acknowledged: Acknowledged::open(&options.folder.join("acknowledged.log"))?,
    })
}

impl Running {
    /// Where it can be reached.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The figures of this moment, for the eye; the proof is in [`Running::finish`].
    pub async fn figures(&self) -> Result<Figures> {
        let parts = &self.parts;
        let tally = parts.attempts.tally();
        Ok(Figures {
            committed: parts.acknowledged.count(),
            effects: tally.effects,
            pending: parts.outbox.pending().await?.rows.unsigned_abs(),
            dead: dead_letters::count(&parts.service).await?.unsigned_abs(),
            retried: tally.failed,
            duplicates: tally.duplicates,
        })
    }

    /// Breaks something.
    pub async fn break_it(&self, what: Break) -> Result<()> {
        match what {
            Break::Poison => self.parts.tenants.poison().await?,
            Break::Relay => self.another_relay().await?,
            Break::Fail | Break::Down | Break::Twice => self.parts.trouble.set(what, true),
        }
        Ok(())
    }

    /// Mends what stays broken until it is mended.
    pub fn mend(&self) {
        self.parts.trouble.end();
    }

    /// Mends this; what is over at once needs it not.
    pub fn mend_one(&self, what: Break) {
        self.parts.trouble.set(what, false);
    }

    /// The new one is there before the old one is gone: for a while two work the table.
    async fn another_relay(&self) -> Result<()> {
        *self.relay.lock().await = self.parts.relay().await?;
        Ok(())
    }

    /// Ends the traffic, mends what is broken, waits until nothing is under way, and judges.
    pub async fn finish(self, patience: Duration) -> Result<Verdict> {
        self.mend();
        if let Some(traffic) = self.traffic {
            traffic.stop().await;
        }
        let began = Instant::now();
        while self.parts.outbox.pending().await?.rows > 0 && began.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.relay.into_inner().stop().await?;
        let parts = &self.parts;
        let (tally, told) = (parts.attempts.tally(), parts.acknowledged.read()?);
        verify::judge(&parts.service, &parts.downstream, tally, &told, verify::Order::Kept).await
    }
}

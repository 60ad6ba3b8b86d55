//! Apache Kafka in KRaft mode: broker and controller in one process.

mod properties;
mod protocol;
mod rights;

use super::cluster::{Cluster, Member, sealed};
use super::node::{Node, node_methods, with_free_ports};
use super::process::{Launch, ServerProcess, StopSignal};
use super::tls::{Certificates, TlsFiles};
use super::{Proxy, Result, ServiceError, locate, port};
use properties::{Listeners, Place};
pub use rights::KafkaRight;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Recovery after a crash may take a while on a busy disk.
const READY_LIMIT: Duration = Duration::from_secs(420);

/// Its data is thrown away, so there is nothing to put in order.
const AT_ONCE: StopSignal = StopSignal { signal: Signal::KILL, name: "KILL" };

/// All nodes have it. Any will do.
const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

/// The administrator of brokers with TLS, by password and by certificate.
const ADMINISTRATOR: &str = super::tls::CLIENT;
const PASSWORD: &str = "relevo";

/// How a server differs from the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct KafkaOptions {
    /// Certificates for two further ports: passwords over TLS, and TLS with client certificates.
    pub tls: Option<Certificates>,
    /// Further users with their passwords, who may do nothing until an access rule lets them.
    pub users: Vec<(String, String)>,
    /// So many further ports lead clients through a proxy, each through its own.
    pub proxies: usize,
    /// Further lines of the broker's properties; a later one wins.
    pub settings: Vec<(String, String)>,
}

impl KafkaOptions {
    /// The defaults.
    pub fn new() -> KafkaOptions {
        KafkaOptions::default()
    }

    /// Listens on two further ports, [`Kafka::scram_bootstrap`] and [`Kafka::mtls_bootstrap`], where
    /// access rules hold. Everything is allowed to the user `relevo` with the password `relevo`,
    /// and to the client's certificate.
    pub fn tls(mut self, certificates: &Certificates) -> KafkaOptions {
        self.tls = Some(certificates.clone());
        self
    }

    /// Adds a user of the port with passwords, who may do nothing until [`Kafka::permit`] lets them.
    pub fn user(mut self, name: &str, password: &str) -> KafkaOptions {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Listens on a further port, [`Kafka::proxied_bootstrap`], from which brokers send clients
    /// through [`Kafka::proxy`] only. A proxy of one's own would see the first request and no other,
    /// because brokers tell clients where to go on.
    pub fn proxied(self) -> KafkaOptions {
        self.proxies(1)
    }

    /// Listens on so many further ports, each behind a proxy of its own, [`Kafka::proxies`]: what is done to one
    /// harms only those who came through it.
    pub fn proxies(mut self, count: usize) -> KafkaOptions {
        self.proxies = count;
        self
    }

    /// Adds a property of the broker, e.g. `message.max.bytes`.
    pub fn setting(mut self, name: &str, value: &str) -> KafkaOptions {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Every user with their password, the administrator too.
    fn everybody(&self) -> impl Iterator<Item = (&str, &str)> {
        let users = self.users.iter().map(|(name, password)| (name.as_str(), password.as_str()));
        users.chain([(ADMINISTRATOR, PASSWORD)])
    }
}

/// A Kafka broker and controller in one; it stops when the value is dropped.
///
/// Topics are not made by using them.
#[derive(Debug)]
pub struct Kafka {
    id: i32,
    listeners: Listeners,
    tls: Option<TlsFiles>,
    proxies: Vec<Proxy>,
    data: PathBuf,
    node: Node,
}

impl Kafka {
    /// Starts a broker for tests that harm it; others take [`Kafka::shared`].
    pub fn start() -> Result<Kafka> {
        Kafka::start_with(&KafkaOptions::new())
    }

    /// Starts a broker that differs from the default.
    pub fn start_with(options: &KafkaOptions) -> Result<Kafka> {
        let programs = Programs::find()?;
        with_free_ports(|| {
            let place = Place { id: 1, controllers: vec![port::free_port()] };
            let kafka = Kafka::prepare(options, &programs, &place)?;
            kafka.node.start()?;
            Ok(kafka)
        })
    }

    /// Starts three brokers, each of them a controller too. Topics have three replicas and take
    /// writes as long as two are there.
    ///
    /// Two of three down also means that no controller is left: requests time out then.
    pub fn cluster() -> Result<Cluster<Kafka>> {
        Kafka::cluster_with(&KafkaOptions::new())
    }

    /// Starts a cluster whose brokers differ from the default.
    pub fn cluster_with(options: &KafkaOptions) -> Result<Cluster<Kafka>> {
        let programs = Programs::find()?;
        with_free_ports(|| {
            let controllers: Vec<u16> =
                (0..Cluster::<Kafka>::SIZE).map(|_| port::free_port()).collect();
            let prepare = |id: i32| {
                let place = Place { id, controllers: controllers.clone() };
                Kafka::prepare(options, &programs, &place)
            };
            let ids = (1..).take(Cluster::<Kafka>::SIZE);
            Cluster::start(ids.map(prepare).collect::<Result<_>>()?)
        })
    }

    /// The one broker that all tests of this process share. Each test makes topics and groups of
    /// its own, named by [`unique_name`](super::unique_name).
    pub fn shared() -> Result<Arc<Kafka>> {
        static SHARED: OnceLock<Result<Arc<Kafka>>> = OnceLock::new();
        SHARED.get_or_init(|| Kafka::start().map(Arc::new)).clone()
    }

    fn prepare(options: &KafkaOptions, programs: &Programs, place: &Place) -> Result<Kafka> {
        let process = ServerProcess::new("Apache Kafka", AT_ONCE)?;
        let mut listeners = Listeners::free(options);
        let mut proxies = Vec::new();
        for _ in 0..options.proxies {
            let port = port::free_port();
            let proxy = Proxy::start(port::local(port))?;
            listeners.proxied.push((port, proxy.address().port()));
            proxies.push(proxy);
        }
        let tls = options.tls.as_ref().map(|all| all.write(&process)).transpose()?;
        process.make_folder("data")?;
        let data = process.folder().join("data");
        let text = properties::of(options, process.folder(), place, &listeners);
        let properties = process.write("server.properties", &text)?;
        process.write("log4j2.properties", properties::LOG4J2)?;
        programs.format(&process, &properties, options, place.id)?;
        let launch = programs.launch(process.folder(), &properties);
        let (id, port) = (place.id, listeners.plain);
        let node = Node::new(process, launch, READY_LIMIT, move || is_ready(id, port));
        Ok(Kafka { id, listeners, tls, proxies, data, node })
    }

    /// Its id among the brokers: partitions name their leader by it.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Where it keeps its partitions: a folder for each, `TOPIC-NUMBER`.
    pub fn data_folder(&self) -> &Path {
        &self.data
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        port::local(self.listeners.plain)
    }

    /// The value of the clients' setting `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// `bootstrap.servers` for `security.protocol=SASL_SSL` with `SCRAM-SHA-512`, `SCRAM-SHA-256` or
    /// `PLAIN`, if the broker was started with TLS.
    pub fn scram_bootstrap(&self) -> Option<String> {
        self.listeners.scram.map(|port| port::local(port).to_string())
    }

    /// `bootstrap.servers` for `security.protocol=SSL` with a client's certificate, if the broker
    /// was started with TLS.
    pub fn mtls_bootstrap(&self) -> Option<String> {
        self.listeners.mtls.map(|port| port::local(port).to_string())
    }

    /// What a client with TLS needs, if the broker was started with it.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// Lets a user of a broker with TLS do something. It takes a moment until the broker knows.
    pub fn permit(&self, user: &str, right: &KafkaRight) -> Result<()> {
        let given = rights::give(self.address(), user, right);
        given.map_err(|error| ServiceError::failed("Apache Kafka", error))
    }

    /// Takes away what [`Kafka::permit`] gave.
    pub fn forbid(&self, user: &str, right: &KafkaRight) -> Result<()> {
        let taken = rights::take_away(self.address(), user, right);
        taken.map_err(|error| ServiceError::failed("Apache Kafka", error))
    }

    /// `bootstrap.servers` of clients that go through [`Kafka::proxy`], if there is one.
    pub fn proxied_bootstrap(&self) -> Option<String> {
        self.proxy().map(|proxy| proxy.address().to_string())
    }

    /// The proxy of a broker that was started with [`KafkaOptions::proxied`].
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxies.first()
    }

    /// The proxies of a broker that was started with [`KafkaOptions::proxies`]; the address of each is a
    /// `bootstrap.servers` of its own.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    node_methods!();
}

impl Cluster<Kafka> {
    /// The value of the clients' setting `bootstrap.servers`, with all brokers.
    pub fn bootstrap(&self) -> String {
        self.iter().map(Kafka::bootstrap).collect::<Vec<_>>().join(",")
    }

    /// The same for clients that go through the brokers' proxies.
    pub fn proxied_bootstrap(&self) -> String {
        self.iter().filter_map(Kafka::proxied_bootstrap).collect::<Vec<_>>().join(",")
    }

    /// Which broker leads a topic's first partition, once one that runs does.
    pub fn leader_of(&self, topic: &str) -> Result<usize> {
        let failed = |why: String| ServiceError::failed("Apache Kafka", why);
        let running = self.iter().find(|node| node.is_running());
        let asked = running.ok_or_else(|| failed("no broker runs".into()))?;
        let leader = protocol::leader(asked.address(), topic).map_err(|e| failed(e.to_string()))?;
        let leads = |node: &Kafka| Some(node.id) == leader && node.is_running();
        let none = || failed(format!("{topic} has no leader: {leader:?}"));
        self.iter().position(leads).ok_or_else(none)
    }
}

impl Member for Kafka {}

impl sealed::Member for Kafka {
    fn node(&self) -> &Node {
        &self.node
    }

    fn sees(&self, nodes: usize) -> Result<()> {
        let cluster = ask(self.listeners.plain)?;
        if cluster.brokers.len() == nodes && cluster.controller.is_some() {
            return Ok(());
        }
        Err(ServiceError::failed("Apache Kafka", format!("{cluster:?}")))
    }
}

/// A broker listens before it serves: it is ready when the cluster knows it and has a controller.
fn is_ready(id: i32, port: u16) -> Result<()> {
    let cluster = ask(port)?;
    if cluster.brokers.contains(&id) && cluster.controller.is_some() {
        return Ok(());
    }
    Err(ServiceError::failed("Apache Kafka", format!("{cluster:?}")))
}

fn ask(port: u16) -> Result<protocol::Cluster> {
    protocol::cluster(port::local(port))
        .map_err(|error| ServiceError::failed("Apache Kafka", error))
}

/// Java and the jars.
#[derive(Debug)]
struct Programs {
    java: PathBuf,
    lib: PathBuf,
}

impl Programs {
    fn find() -> Result<Programs> {
        Ok(Programs { lib: locate::kafka_lib()?, java: locate::java()? })
    }

    /// Makes the data folder a node's. What formatting writes is the same for every node without
    /// users, and copying it spares a start of Java.
    fn format(
        &self,
        process: &ServerProcess,
        properties: &Path,
        options: &KafkaOptions,
        id: i32,
    ) -> Result<()> {
        let formatted = self.lib.with_file_name("bootstrap.checkpoint");
        if options.tls.is_none() && formatted.is_file() {
            let meta = format!("version=1\nnode.id={id}\ncluster.id={CLUSTER}\n");
            process.write("data/meta.properties", &meta)?;
            return process.copy(&formatted, "data/bootstrap.checkpoint").map(drop);
        }
        let properties = properties.display().to_string();
        let mut args = self.flags(process.folder());
        let format = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", &properties];
        args.extend(format.map(str::to_owned));
        for (name, password) in options.everybody() {
            for mechanism in ["SCRAM-SHA-512", "SCRAM-SHA-256"] {
                args.push("--add-scram".to_owned());
                args.push(format!("{mechanism}=[name={name},password={password}]"));
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        process.run(&self.java, &args)
    }

    fn launch(&self, folder: &Path, properties: &Path) -> Launch {
        let archive = self.lib.with_file_name("kafka.jsa");
        let mut args = Vec::new();
        if archive.is_file() {
            args.push(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        args.extend(self.flags(folder));
        args.extend(["kafka.Kafka".to_owned(), properties.display().to_string()]);
        Launch::new(&self.java).args(&args)
    }

    /// `cargo xtask` archives classes with the same flags: an archive does not fit other ones.
    fn flags(&self, folder: &Path) -> Vec<String> {
        let logging = folder.join("log4j2.properties");
        vec![
            "-Xms64m".to_owned(),
            "-Xmx256m".to_owned(),
            "-XX:+UseSerialGC".to_owned(),
            "-XX:TieredStopAtLevel=1".to_owned(),
            "-XX:-UsePerfData".to_owned(),
            format!("-Dlog4j2.configurationFile={}", logging.display()),
            "-cp".to_owned(),
            format!("{}/*", self.lib.display()),
        ]
    }
}

//! RabbitMQ with its management API.

mod amqp;

use super::cluster::{Cluster, Member, sealed};
use super::http::Request;
use super::node::{Node, node_methods, with_free_ports};
use super::process::{Launch, ServerProcess, StopSignal};
use super::tls::{Certificates, ClientCertificates, TlsFiles};
use super::{Result, ServiceError, locate, port, unique_name};
use rustix::process::Signal;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Erlang starts slowly on a busy machine: three nodes on two cores with fifteen others at work were
/// seen to need more than three minutes.
const READY_LIMIT: Duration = Duration::from_secs(420);

/// Its data is thrown away, and an end in good order takes seconds.
const AT_ONCE: StopSignal = StopSignal { signal: Signal::KILL, name: "KILL" };

const USER: &str = "relevo";
const PASSWORD: &str = "relevo";
/// The two above, as HTTP wants them.
const AUTHORIZATION: &str = "Basic cmVsZXZvOnJlbGV2bw==";

/// How a server differs from the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RabbitMqOptions {
    /// Certificates for a second port with TLS, and whether clients need one.
    pub tls: Option<(Certificates, ClientCertificates)>,
    /// Further lines of rabbitmq.conf.
    pub lines: Vec<String>,
}

impl RabbitMqOptions {
    /// The defaults.
    pub fn new() -> RabbitMqOptions {
        RabbitMqOptions::default()
    }

    /// Listens with TLS on a second port. A client may log in by its certificate (EXTERNAL).
    pub fn tls(mut self, certificates: &Certificates, clients: ClientCertificates) -> Self {
        self.tls = Some((certificates.clone(), clients));
        self
    }

    /// Adds a line to rabbitmq.conf, e.g. `max_message_size = 65536`.
    pub fn line(mut self, line: &str) -> RabbitMqOptions {
        self.lines.push(line.to_owned());
        self
    }
}

/// A RabbitMQ node; it stops when the value is dropped.
///
/// On a single node, a kill within about a second of *declaring* a quorum queue loses what the
/// queue confirmed: kill tests wait two seconds after they declare.
#[derive(Debug)]
pub struct RabbitMq {
    name: String,
    ports: Ports,
    tls: Option<TlsFiles>,
    node: Node,
    // After the node: nodes find each other through it as long as they run.
    _names: Arc<ServerProcess>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    amqps: u16,
    management: u16,
    distribution: u16,
}

impl Ports {
    fn free() -> Ports {
        Ports {
            amqp: port::free_port(),
            amqps: port::free_port(),
            management: port::free_port(),
            distribution: port::free_port(),
        }
    }
}

impl RabbitMq {
    /// Starts a server for tests that harm it; others take [`RabbitMq::shared`].
    pub fn start() -> Result<RabbitMq> {
        RabbitMq::start_with(&RabbitMqOptions::new())
    }

    /// Starts a server that differs from the default.
    pub fn start_with(options: &RabbitMqOptions) -> Result<RabbitMq> {
        let programs = Programs::find()?;
        with_free_ports(|| {
            let names = Names::start(&programs)?;
            let rabbitmq = RabbitMq::prepare(options, &programs, &names, "rabbit@localhost")?;
            rabbitmq.node.start()?;
            Ok(rabbitmq)
        })
    }

    /// Starts three nodes that form a cluster.
    pub fn cluster() -> Result<Cluster<RabbitMq>> {
        RabbitMq::cluster_with(&RabbitMqOptions::new())
    }

    /// Starts a cluster whose nodes differ from the default.
    pub fn cluster_with(options: &RabbitMqOptions) -> Result<Cluster<RabbitMq>> {
        let programs = Programs::find()?;
        let names: Vec<String> =
            (1..=Cluster::<RabbitMq>::SIZE).map(|n| format!("rabbit{n}@localhost")).collect();
        let backend = "cluster_formation.peer_discovery_backend = classic_config";
        let mut options = options.clone().line(backend);
        for (n, name) in (1..).zip(&names) {
            options = options.line(&format!("cluster_formation.classic_config.nodes.{n} = {name}"));
        }
        // The first finds nobody and need not look for long.
        options = options.line("cluster_formation.discovery_retry_interval = 100");
        // Left to itself, a node that was cut off goes its own way.
        options = options.line("cluster_partition_handling = pause_minority");
        with_free_ports(|| {
            let directory = Names::start(&programs)?;
            let prepare = |name| RabbitMq::prepare(&options, &programs, &directory, name);
            Cluster::start_in_turn(names.iter().map(|name| prepare(name)).collect::<Result<_>>()?)
        })
    }

    /// The one server that all tests of this process share. Each test makes its own virtual host
    /// with [`RabbitMq::fresh_vhost`].
    pub fn shared() -> Result<Arc<RabbitMq>> {
        static SHARED: OnceLock<Result<Arc<RabbitMq>>> = OnceLock::new();
        SHARED.get_or_init(|| RabbitMq::start().map(Arc::new)).clone()
    }

    fn prepare(
        options: &RabbitMqOptions,
        programs: &Programs,
        names: &Names,
        name: &str,
    ) -> Result<RabbitMq> {
        let process = ServerProcess::new("RabbitMQ", AT_ONCE)?;
        let ports = Ports::free();
        let certificates = options.tls.as_ref().map(|(certificates, _)| certificates);
        let tls = certificates.map(|all| all.write(&process)).transpose()?;
        process.write("rabbitmq.conf", &configuration(options, process.folder(), ports))?;
        process.write("advanced.config", "[].\n")?;
        process.write("enabled_plugins", PLUGINS)?;
        process.make_folder("home")?;
        process.write_secret("home/.erlang.cookie", "relevo")?;
        let launch = launch(programs, names.port, name, process.folder(), ports);
        let ready = move || {
            amqp::open(port::local(ports.amqp), USER, PASSWORD, "/")
                .map_err(|error| ServiceError::failed("RabbitMQ", error))
        };
        let node = Node::new(process, launch, READY_LIMIT, ready);
        Ok(RabbitMq { name: name.to_owned(), ports, tls, node, _names: names.process.clone() })
    }

    /// Its name among Erlang's nodes, e.g. `rabbit@localhost`: queues name their leader by it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where AMQP clients connect.
    pub fn address(&self) -> SocketAddr {
        port::local(self.ports.amqp)
    }

    /// Where the management API answers.
    pub fn management(&self) -> SocketAddr {
        port::local(self.ports.management)
    }

    /// The URL of the default virtual host, as administrator.
    pub fn url(&self) -> String {
        self.url_of("%2f")
    }

    /// The URL of a virtual host, whose name is encoded for URLs, as administrator.
    pub fn url_of(&self, vhost: &str) -> String {
        format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{}/{vhost}", self.ports.amqp)
    }

    /// Where AMQP clients connect with TLS.
    pub fn tls_address(&self) -> SocketAddr {
        port::local(self.ports.amqps)
    }

    /// The same virtual host of the port with TLS.
    pub fn tls_url(&self, url: &str) -> String {
        port::with_port(&url.replacen("amqp://", "amqps://", 1), self.ports.amqps)
    }

    /// What a client with TLS needs, if the server was started with it.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// Makes an empty virtual host and returns its URL.
    pub fn fresh_vhost(&self) -> Result<String> {
        let name = unique_name("test");
        self.api("PUT", &format!("/api/vhosts/{name}"), "")?;
        let everything = r#"{"configure":".*","write":".*","read":".*"}"#;
        self.api("PUT", &format!("/api/permissions/{name}/{USER}"), everything)?;
        Ok(self.url_of(&name))
    }

    /// A request to the management API, as administrator; the answer is JSON.
    pub fn api(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let request = Request { method, path, authorization: AUTHORIZATION, body };
        request.send(self.management())
    }

    node_methods!();
}

impl Cluster<RabbitMq> {
    /// The URL of the default virtual host on each node. A cluster is one test's own, so it needs no other; one that is
    /// made while a node is still starting is never started there.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(RabbitMq::url).collect()
    }

    /// One URL with all nodes, for clients that know several.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.iter().map(|node| node.address().to_string()).collect();
        format!("amqp://{USER}:{PASSWORD}@{}/%2f", addresses.join(","))
    }

    /// Which node leads a quorum queue of the default virtual host, once it has a leader that runs.
    pub fn leader_of(&self, queue: &str) -> Result<usize> {
        let running = self.iter().find(|node| node.is_running());
        let node = running.ok_or_else(|| ServiceError::failed("RabbitMQ", "no node runs"))?;
        let answer = node.api("GET", &format!("/api/queues/%2f/{queue}?columns=leader"), "")?;
        let leads = |node: &&RabbitMq| answer.contains(&format!("\"{}\"", node.name()));
        let place = self.iter().position(|node| leads(&node) && node.is_running());
        place.ok_or_else(|| ServiceError::failed("RabbitMQ", format!("no leader: {answer}")))
    }
}

impl Member for RabbitMq {}

impl sealed::Member for RabbitMq {
    fn node(&self) -> &Node {
        &self.node
    }

    fn sees(&self, nodes: usize) -> Result<()> {
        let answer = self.api("GET", "/api/nodes?columns=name,running", "")?;
        if answer.matches("\"running\":true").count() != nodes {
            return Err(ServiceError::failed("RabbitMQ", format!("the nodes are {answer}")));
        }
        // A node runs a while before it serves, and serves one virtual host sooner than another.
        let answer = self.api("GET", "/api/vhosts/%2f?columns=cluster_state", "")?;
        match answer.matches("\"running\"").count() {
            count if count == nodes => Ok(()),
            _ => Err(ServiceError::failed("RabbitMQ", format!("the virtual host is {answer}"))),
        }
    }
}

/// The API for everything, logging in by certificate, and queues by hash.
const PLUGINS: &str = "[rabbitmq_management,rabbitmq_auth_mechanism_ssl,\
                       rabbitmq_consistent_hash_exchange].\n";

/// Where the parts of RabbitMQ and Erlang are.
#[derive(Debug)]
struct Programs {
    server: PathBuf,
    erlang: PathBuf,
}

impl Programs {
    fn find() -> Result<Programs> {
        let server = locate::rabbitmq()?;
        let lib = server.ancestors().nth(3).unwrap_or(Path::new("/usr/lib"));
        Ok(Programs { erlang: lib.join("erlang/bin"), server })
    }
}

/// Erlang's own directory of nodes, one for each cluster. Left alone, RabbitMQ would start one that
/// survives it.
#[derive(Debug)]
struct Names {
    port: u16,
    process: Arc<ServerProcess>,
}

impl Names {
    fn start(programs: &Programs) -> Result<Names> {
        let mut process = ServerProcess::new("RabbitMQ's epmd", AT_ONCE)?;
        let port = port::free_port();
        let args = ["-port", &port.to_string(), "-address", "127.0.0.1"];
        process.spawn(&programs.erlang.join("epmd"), &args)?;
        process.wait_ready(READY_LIMIT, || {
            std::net::TcpStream::connect(port::local(port))
                .map(drop)
                .map_err(|error| ServiceError::failed("RabbitMQ's epmd", error))
        })?;
        Ok(Names { port, process: Arc::new(process) })
    }
}

fn configuration(options: &RabbitMqOptions, folder: &Path, ports: Ports) -> String {
    let Ports { amqp, amqps, management, .. } = ports;
    let mut text = format!(
        "listeners.tcp.1 = 127.0.0.1:{amqp}\n\
         management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n\
         default_user = {USER}\ndefault_pass = {PASSWORD}\n\
         disk_free_limit.absolute = 50MB\nlog.console = true\nlog.file = false\n"
    );
    if let Some((_, clients)) = &options.tls {
        let (folder, required) = (folder.display(), *clients == ClientCertificates::Required);
        let _ = write!(
            text,
            "listeners.ssl.1 = 127.0.0.1:{amqps}\n\
             ssl_options.cacertfile = {folder}/ca.pem\nssl_options.certfile = {folder}/server.pem\n\
             ssl_options.keyfile = {folder}/server.key\nssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = {required}\n\
             auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = AMQPLAIN\nauth_mechanisms.3 = EXTERNAL\n\
             ssl_cert_login_from = common_name\n"
        );
    }
    for line in &options.lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn launch(programs: &Programs, names: u16, node: &str, folder: &Path, ports: Ports) -> Launch {
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.erlang.display());
    // Few threads, and none that spins while it waits for work: many nodes share few cores.
    // Nodes take each other for dead after a minute of silence, not sooner: on a busy machine they do not get to speak
    // for seconds. A node that is killed is noticed at once.
    let erlang = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false \
                  +S 2:2 +A 4 +sbwt none +sbwtdcpu none +sbwtdio none";
    let own = |name: &str| folder.join(name).display().to_string();
    Launch::new(&programs.server)
        .args(&["-noinput"])
        .alone()
        .variable("PATH", path)
        .variable("LC_ALL", "C.UTF-8")
        .variable("HOME", own("home"))
        .variable("RABBITMQ_NODENAME", node)
        .variable("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .variable("RABBITMQ_CONFIG_FILE", own("rabbitmq.conf"))
        .variable("RABBITMQ_ADVANCED_CONFIG_FILE", own("advanced.config"))
        .variable("RABBITMQ_ENABLED_PLUGINS_FILE", own("enabled_plugins"))
        .variable("RABBITMQ_MNESIA_BASE", own("mnesia"))
        .variable("RABBITMQ_LOG_BASE", own("logs"))
        // Not `pid`, which the janitor reads.
        .variable("RABBITMQ_PID_FILE", own("rabbitmq.pid"))
        .variable("RABBITMQ_GENERATED_CONFIG_DIR", own("schema"))
        .variable("RABBITMQ_DIST_PORT", ports.distribution)
        .variable("ERL_EPMD_PORT", names)
        .variable("ERL_EPMD_ADDRESS", "127.0.0.1")
        .variable("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erlang)
        // The script becomes the server instead of watching over it.
        .variable("RABBITMQ_ALLOW_INPUT", "1")
}

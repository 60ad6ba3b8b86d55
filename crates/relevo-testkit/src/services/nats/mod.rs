//! NATS with JetStream.

mod login;

use super::cluster::{Cluster, Member, sealed};
use super::http::Request;
use super::node::{Node, node_methods, with_free_ports};
use super::process::{Launch, ServerProcess, StopSignal};
use super::tls::{Certificates, ClientCertificates, TlsFiles};
use super::{Result, ServiceError, locate, port};
pub use login::NatsLogin;
use login::{ACCOUNT, Login, PASSWORD, USER};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// It starts in a moment; on a busy machine, and with much to recover, in many.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Its data is thrown away, so there is nothing to put in order.
const AT_ONCE: StopSignal = StopSignal { signal: Signal::KILL, name: "KILL" };

/// How a server differs from the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NatsOptions {
    /// How clients log in.
    pub login: NatsLogin,
    /// Certificates, and whether clients need one. Then there is no port without TLS.
    pub tls: Option<(Certificates, ClientCertificates)>,
    /// Whether an acknowledged message is on the disk, not only with the operating system.
    pub sync_always: bool,
    /// Further users of the account, whose password is `relevo`, with what the file says of their permissions.
    pub users: Vec<(String, String)>,
    /// The name of its JetStream among those that are connected.
    pub domain: Option<String>,
    /// The port for leaves of the server that it is a leaf of itself.
    pub hub: Option<u16>,
    /// Whether JetStream is off.
    pub no_jetstream: bool,
    /// Further lines of the configuration file.
    pub lines: Vec<String>,
}

impl NatsOptions {
    /// The defaults.
    pub fn new() -> NatsOptions {
        NatsOptions::default()
    }

    /// Lets clients log in another way.
    pub fn login(mut self, login: NatsLogin) -> NatsOptions {
        self.login = login;
        self
    }

    /// Speaks TLS only.
    pub fn tls(mut self, certificates: &Certificates, clients: ClientCertificates) -> NatsOptions {
        self.tls = Some((certificates.clone(), clients));
        self
    }

    /// Makes acknowledgements wait for the disk.
    pub fn durable(mut self) -> NatsOptions {
        self.sync_always = true;
        self
    }

    /// Adds a user with the password `relevo` and these permissions, e.g. `publish: { deny: "a.b" }`.
    pub fn user(mut self, name: &str, permissions: &str) -> NatsOptions {
        self.users.push((name.to_owned(), permissions.to_owned()));
        self
    }

    /// Names its JetStream, and lets other servers be its leaves.
    pub fn domain(mut self, name: &str) -> NatsOptions {
        self.domain = Some(name.to_owned());
        self
    }

    /// Makes it a leaf of a server that has a domain: what clients publish here gets there.
    pub fn leaf_of(mut self, hub: &Nats) -> NatsOptions {
        self.hub = Some(hub.ports.leaves);
        self
    }

    /// Leaves JetStream off.
    pub fn without_jetstream(mut self) -> NatsOptions {
        self.no_jetstream = true;
        self
    }

    /// Adds a line to the configuration file, e.g. `max_payload: 64KB`.
    pub fn line(mut self, line: &str) -> NatsOptions {
        self.lines.push(line.to_owned());
        self
    }
}

/// A NATS server with JetStream; it stops when the value is dropped.
#[derive(Debug)]
pub struct Nats {
    name: String,
    ports: Ports,
    login: Login,
    tls: Option<TlsFiles>,
    node: Node,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    clients: u16,
    monitor: u16,
    routes: u16,
    leaves: u16,
}

impl Ports {
    fn free() -> Ports {
        let [clients, monitor, routes, leaves] = std::array::from_fn(|_| port::free_port());
        Ports { clients, monitor, routes, leaves }
    }
}

impl Nats {
    /// Starts a server for tests that harm it; others take [`Nats::shared`].
    pub fn start() -> Result<Nats> {
        Nats::start_with(&NatsOptions::new())
    }

    /// Starts a server that differs from the default.
    pub fn start_with(options: &NatsOptions) -> Result<Nats> {
        let program = locate::nats_server()?;
        with_free_ports(|| {
            let nats = Nats::prepare(options, &program, "n1", Ports::free(), &[])?;
            nats.node.start()?;
            Ok(nats)
        })
    }

    /// Starts three servers that form a cluster.
    pub fn cluster() -> Result<Cluster<Nats>> {
        Nats::cluster_with(&NatsOptions::new())
    }

    /// Starts a cluster whose servers differ from the default. They log in by password: the keys of
    /// the other ways are each server's own.
    pub fn cluster_with(options: &NatsOptions) -> Result<Cluster<Nats>> {
        let program = locate::nats_server()?;
        let options = options.clone().login(NatsLogin::Password);
        with_free_ports(|| {
            let ports: Vec<Ports> = (0..Cluster::<Nats>::SIZE).map(|_| Ports::free()).collect();
            let routes: Vec<u16> = ports.iter().map(|ports| ports.routes).collect();
            let prepare = |(n, ports): (usize, &Ports)| {
                Nats::prepare(&options, &program, &format!("n{n}"), *ports, &routes)
            };
            Cluster::start((1..).zip(&ports).map(prepare).collect::<Result<_>>()?)
        })
    }

    /// The one server that all tests of this process share. Each test makes streams of its own,
    /// named and with subjects by [`unique_name`](super::unique_name).
    pub fn shared() -> Result<Arc<Nats>> {
        static SHARED: OnceLock<Result<Arc<Nats>>> = OnceLock::new();
        SHARED.get_or_init(|| Nats::start().map(Arc::new)).clone()
    }

    fn prepare(
        options: &NatsOptions,
        program: &Path,
        name: &str,
        ports: Ports,
        routes: &[u16],
    ) -> Result<Nats> {
        let process = ServerProcess::new("NATS", AT_ONCE)?;
        let login = Login::new(options, &process)?;
        let certificates = options.tls.as_ref().map(|(certificates, _)| certificates);
        let tls = certificates.map(|all| all.write(&process)).transpose()?;
        let mut text = basics(options, process.folder(), name, ports);
        text += &login.configuration;
        text += &cluster_of(ports, routes);
        let file = process.write("nats.conf", &text)?;
        let launch = Launch::new(program)
            .args(&["-c", &file.display().to_string()])
            .variable("GOMEMLIMIT", "96MiB")
            .variable("HOME", process.folder().display());
        let monitor = port::local(ports.monitor);
        let healthy = move || Request::get("/healthz").send(monitor).map(drop);
        let node = Node::new(process, launch, READY_LIMIT, healthy);
        Ok(Nats { name: name.to_owned(), ports, login, tls, node })
    }

    /// Its name in the cluster: streams name their leader by it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        port::local(self.ports.clients)
    }

    /// Where it tells how it is, by HTTP: `/healthz`, `/varz`, `/jsz`.
    pub fn monitor(&self) -> SocketAddr {
        port::local(self.ports.monitor)
    }

    /// The URL for clients, with user and password or the token if that is how they log in.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "tls" } else { "nats" };
        let user = self.login.in_url.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        format!("{scheme}://{user}{}", self.address())
    }

    /// The seed of the client's nkey, if clients log in that way.
    pub fn seed(&self) -> Option<&str> {
        self.login.seed.as_deref()
    }

    /// The client's credentials file, if clients log in that way. It lives as long as the server.
    pub fn credentials_file(&self) -> Option<&Path> {
        self.login.credentials.as_deref()
    }

    /// What a client with TLS needs, if the server was started with it.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// What the monitor answers to a path such as `/varz`: JSON.
    pub fn monitored(&self, path: &str) -> Result<String> {
        Request::get(path).send(self.monitor())
    }

    node_methods!();
}

impl Cluster<Nats> {
    /// The URL of each server.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Nats::url).collect()
    }

    /// Which server leads a stream, once it has a leader that runs.
    pub fn leader_of(&self, stream: &str) -> Result<usize> {
        let running = self.iter().find(|node| node.is_running());
        let node = running.ok_or_else(|| ServiceError::failed("NATS", "no server runs"))?;
        let answer = json(&node.monitored("/jsz?accounts=true&streams=true")?)?;
        let streams = answer["account_details"].as_array().into_iter().flatten();
        let mut streams = streams.flat_map(|account| account["stream_detail"].as_array()).flatten();
        let found = streams.find(|found| found["name"] == stream);
        let leader = found.and_then(|found| found["cluster"]["leader"].as_str());
        let leads = |node: &Nats| Some(node.name()) == leader && node.is_running();
        let none = || ServiceError::failed("NATS", format!("{stream} has no leader: {leader:?}"));
        self.iter().position(leads).ok_or_else(none)
    }
}

impl Member for Nats {}

impl sealed::Member for Nats {
    fn node(&self) -> &Node {
        &self.node
    }

    fn sees(&self, nodes: usize) -> Result<()> {
        let group = &json(&self.monitored("/jsz")?)?["meta_cluster"];
        let leader = group["leader"].as_str().unwrap_or_default();
        // Two servers have several routes between them, so these are counted by where they lead to.
        let routes = json(&self.monitored("/routez")?)?;
        let others = names(&routes["routes"], "remote_name").collect::<BTreeSet<_>>().len();
        // The leader alone knows who follows: where it sees nobody, no stream can be placed.
        let current = group["replicas"].as_array().into_iter().flatten();
        let followers = current.filter(|replica| replica["current"] == true).count();
        let all = nodes - 1;
        let complete = others == all && (leader != self.name || followers == all);
        if !leader.is_empty() && complete && group["cluster_size"] == nodes {
            return Ok(());
        }
        Err(ServiceError::failed("NATS", format!("not complete: {group}, {others} others")))
    }
}

fn json(answer: &str) -> Result<serde_json::Value> {
    serde_json::from_str(answer)
        .map_err(|error| ServiceError::failed("NATS", format!("{error}: {answer}")))
}

fn names<'j>(list: &'j serde_json::Value, field: &'j str) -> impl Iterator<Item = &'j str> {
    list.as_array().into_iter().flatten().filter_map(move |entry| entry[field].as_str())
}

fn basics(options: &NatsOptions, folder: &Path, name: &str, ports: Ports) -> String {
    let Ports { clients, monitor, .. } = ports;
    let mut text = format!(
        "server_name: {name}\nlisten: \"127.0.0.1:{clients}\"\nhttp: \"127.0.0.1:{monitor}\"\n"
    );
    if !options.no_jetstream {
        text += &jetstream(options, folder);
    }
    text += &leaves(options, ports);
    let folder = folder.display();
    if let Some((_, clients)) = &options.tls {
        let verify = *clients == ClientCertificates::Required;
        let _ = writeln!(
            text,
            "tls {{ cert_file: \"{folder}/server.pem\", key_file: \"{folder}/server.key\", \
             ca_file: \"{folder}/ca.pem\", verify: {verify} }}"
        );
    }
    for line in &options.lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn jetstream(options: &NatsOptions, folder: &Path) -> String {
    let sync = if options.sync_always { "always" } else { "2m" };
    let domain = options.domain.as_ref().map(|name| format!(", domain: {name}"));
    format!(
        "jetstream {{ store_dir: \"{}/store\", max_mem: 128MB, max_file: 4GB, \
         sync_interval: \"{sync}\"{} }}\n",
        folder.display(),
        domain.unwrap_or_default(),
    )
}

/// A server with a domain has leaves, and one of them knows where it is.
fn leaves(options: &NatsOptions, ports: Ports) -> String {
    match (options.hub, &options.domain) {
        (Some(hub), _) => format!(
            "leafnodes {{ remotes: [{{ url: \"nats://{USER}:{PASSWORD}@127.0.0.1:{hub}\", \
             account: {ACCOUNT} }}] }}\n"
        ),
        (None, Some(_)) => format!("leafnodes {{ listen: \"127.0.0.1:{}\" }}\n", ports.leaves),
        (None, None) => String::new(),
    }
}

/// How it finds the others. Clients are not told of them: one behind a proxy must stay there.
fn cluster_of(ports: Ports, routes: &[u16]) -> String {
    if routes.is_empty() {
        return String::new();
    }
    let others: Vec<String> =
        routes.iter().map(|route| format!("\"nats://127.0.0.1:{route}\"")).collect();
    format!(
        "cluster {{ name: relevo, listen: \"127.0.0.1:{}\", no_advertise: true, routes: [{}] }}\n",
        ports.routes,
        others.join(", ")
    )
}

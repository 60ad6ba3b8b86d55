//! The file `server.properties` of a broker.

use super::{ADMINISTRATOR, KafkaOptions, port};
use std::fmt::Write;
use std::path::Path;

/// Warnings, and the version that runs.
pub(super) const LOG4J2: &str = "\
status=off
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
logger.version.name=org.apache.kafka.common.utils.AppInfoParser
logger.version.level=info
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
";

/// Which of the nodes it is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) id: i32,
    /// The controllers' ports, by id from 1.
    pub(super) controllers: Vec<u16>,
}

/// The ports of the ways in.
#[derive(Debug, Clone)]
pub(super) struct Listeners {
    pub(super) plain: u16,
    pub(super) scram: Option<u16>,
    pub(super) mtls: Option<u16>,
    /// Ways in through a proxy: the own port, and the proxy's, where clients are sent.
    pub(super) proxied: Vec<(u16, u16)>,
}

impl Listeners {
    pub(super) fn free(options: &KafkaOptions) -> Listeners {
        let tls = options.tls.is_some();
        Listeners {
            plain: port::free_port(),
            scram: tls.then(port::free_port),
            mtls: tls.then(port::free_port),
            proxied: Vec::new(),
        }
    }

    /// Name, security protocol, own port and the port that clients are told.
    fn all(&self) -> Vec<(String, &'static str, u16, u16)> {
        let mut all = vec![("INTERNAL".to_owned(), "PLAINTEXT", self.plain, self.plain)];
        all.extend(self.scram.map(|port| ("SCRAM".to_owned(), "SASL_SSL", port, port)));
        all.extend(self.mtls.map(|port| ("MTLS".to_owned(), "SSL", port, port)));
        let proxied = self.proxied.iter().enumerate();
        all.extend(proxied.map(|(number, (port, proxy))| {
            (format!("PROXIED{number}"), "PLAINTEXT", *port, *proxy)
        }));
        all
    }
}

/// Sized for tests: short timeouts, few threads, small tables.
const SMALL: &str = "\
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=4194304
";

const ONE_NODE: &str = "\
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
";

/// Short enough that the loss of one is noticed soon, long enough for a busy machine.
const THREE_NODES: &str = "\
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
controller.quorum.election.backoff.max.ms=500
replica.lag.time.max.ms=5000
";

pub(super) fn of(
    options: &KafkaOptions,
    folder: &Path,
    place: &Place,
    listeners: &Listeners,
) -> String {
    let mut text = SMALL.to_owned();
    text += if place.controllers.len() > 1 { THREE_NODES } else { ONE_NODE };
    let _ = writeln!(text, "node.id={}\nlog.dirs={}/data", place.id, folder.display());
    text += &ways_in(place, listeners);
    if options.tls.is_some() {
        text += &security(options, folder);
    }
    for (name, value) in &options.settings {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

fn ways_in(place: &Place, listeners: &Listeners) -> String {
    let voters: Vec<String> =
        (1..).zip(&place.controllers).map(|(id, port)| format!("{id}@127.0.0.1:{port}")).collect();
    let own = usize::try_from(place.id - 1).ok().and_then(|index| place.controllers.get(index));
    let controller = own.copied().unwrap_or_default();
    let (mut bound, mut told, mut protocols) = (String::new(), Vec::new(), String::new());
    for (name, protocol, port, told_port) in listeners.all() {
        let _ = write!(bound, "{name}://127.0.0.1:{port},");
        let _ = write!(protocols, "{name}:{protocol},");
        told.push(format!("{name}://127.0.0.1:{told_port}"));
    }
    format!(
        "controller.quorum.voters={}\nlisteners={bound}CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners={}\nlistener.security.protocol.map={protocols}CONTROLLER:PLAINTEXT\n",
        voters.join(","),
        told.join(","),
    )
}

/// Passwords on one port, certificates on another, and rules of access for both. Whoever comes
/// without either, over the plain port, is the test kit itself.
fn security(options: &KafkaOptions, folder: &Path) -> String {
    let folder = folder.display();
    let mut plain = String::new();
    for (name, password) in options.everybody() {
        let _ = write!(plain, " user_{name}=\"{password}\"");
    }
    format!(
        "sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN\n\
         listener.name.scram.scram-sha-512.sasl.jaas.config=\
         org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
         listener.name.scram.scram-sha-256.sasl.jaas.config=\
         org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
         listener.name.scram.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required{plain};\n\
         ssl.keystore.type=PEM\nssl.keystore.location={folder}/server-both.pem\n\
         ssl.truststore.type=PEM\nssl.truststore.location={folder}/ca.pem\n\
         listener.name.mtls.ssl.client.auth=required\n\
         listener.name.mtls.ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS;User:{ADMINISTRATOR}\n\
         allow.everyone.if.no.acl.found=false\n"
    )
}

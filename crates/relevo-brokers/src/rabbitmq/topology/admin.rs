use super::RabbitMqTopology;
use super::Routing;
use super::management::{Bound, Management};
use super::thing::{Thing, exchange_table, table};
use crate::rabbitmq::connect::{Link, connect, reason};
use crate::rabbitmq::{NAME, RabbitMqConfig, failed};
use async_trait::async_trait;
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPScheme;
use lapin::{Connection, ErrorKind, ExchangeKind};
use relevo_core::broker::{Act, Plan, Step, Told, Topology};
use relevo_core::{Kind, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// So long a goodbye is waited for: what is wanted of the broker is done by then.
const GOODBYE: Duration = Duration::from_secs(5);
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const MANAGEMENT_PORT: u16 = 15672;
/// So many of the bindings that would be lost are named.
const SHOWN: usize = 5;

/// Brings a virtual host to what a [`RabbitMqTopology`] wants.
///
/// Exchanges and queues are compared over AMQP: what is there is declared once more as it is wanted, and the broker
/// says what differs. Which bindings there are only the management API tells; where it does not answer, bindings are
/// planned as [`Act::Ensure`].
pub struct RabbitMqAdmin {
    config: RabbitMqConfig,
    wanted: Vec<Thing>,
    management: Management,
}

impl RabbitMqAdmin {
    /// Compares with the virtual host of `config`. The management API is looked for at the same hosts, port 15672,
    /// with the same user; behind `amqps://` only where [`RabbitMqAdmin::management_port`] says so, because it would
    /// be told the password in clear.
    pub fn new(config: RabbitMqConfig, topology: &RabbitMqTopology) -> Self {
        let authority = &config.uri.authority;
        let encrypted = config.uri.scheme == AMQPScheme::AMQPS;
        let management = Management {
            hosts: config.nodes.iter().map(|(host, _)| host.clone()).collect(),
            port: (!encrypted).then_some(MANAGEMENT_PORT),
            user: authority.userinfo.username.clone(),
            password: authority.userinfo.password.clone(),
            vhost: config.uri.vhost.clone(),
        };
        Self { wanted: topology.things(), management, config }
    }

    /// The management API answers at this port, by HTTP.
    pub fn management_port(mut self, port: u16) -> Self {
        self.management.port = Some(port);
        self
    }

    async fn connect(&self) -> Result<Link> {
        let connected = connect(&self.config, "topology").await;
        connected.map_err(|why| failed(Kind::DestinationDown, why))
    }

    async fn hang_up(&self, connection: Link) {
        if let Err(why) = connection.hang_up(GOODBYE).await {
            tracing::debug!(adapter = NAME, why, "the connection did not end in good order");
        }
    }

    async fn compare(&self, connection: &Connection) -> Result<Vec<(Step, Thing)>> {
        let bindings = self.management.bindings().await;
        let mut steps = Vec::new();
        for thing in &self.wanted {
            let (act, mut text) = match thing {
                Thing::Binding { .. } => bound(thing, &bindings),
                _ => self.declared(connection, thing).await?,
            };
            if act == Act::Replace {
                text += &self.lost_with(thing, &bindings);
            }
            steps.push((Step::new(act, thing.what(), thing.name(), text), thing.clone()));
        }
        let strangers = bindings.as_deref().unwrap_or_default().iter();
        for binding in strangers.filter(|binding| self.is_stray(binding)) {
            let thing = Thing::binding(&binding.source, &binding.destination, &binding.routing_key);
            let text = format!("{} is not wanted", binding.routing_key);
            steps.push((Step::new(Act::Delete, "binding", thing.name(), text), thing));
        }
        Ok(steps)
    }

    /// Between two that are wanted, and not wanted itself.
    fn is_stray(&self, binding: &Bound) -> bool {
        let thing = Thing::binding(&binding.source, &binding.destination, &binding.routing_key);
        binding.destination_type == "queue"
            && self.wants("exchange", &binding.source)
            && self.wants("queue", &binding.destination)
            && !self.wanted.contains(&thing)
    }

    fn wants(&self, what: &str, name: &str) -> bool {
        self.wanted.iter().any(|thing| thing.what() == what && thing.name() == name)
    }

    /// Bindings that what is made anew loses for good: those to or from what is not named, and between exchanges.
    fn lost_with(&self, thing: &Thing, bindings: &Result<Vec<Bound>, String>) -> String {
        let Ok(bindings) = bindings else {
            return "; its bindings to or from what is not named here would go, if there are any"
                .into();
        };
        let is_lost = |binding: &&Bound| {
            let made_again = binding.destination_type == "queue"
                && self.wants("exchange", &binding.source)
                && self.wants("queue", &binding.destination);
            // Every queue is bound to the exchange without a name, and always will be.
            !made_again && !binding.source.is_empty() && binding.is_of(thing)
        };
        let lost: BTreeSet<String> = bindings.iter().filter(is_lost).map(Bound::ends).collect();
        if lost.is_empty() {
            return String::new();
        }
        let shown: Vec<&str> = lost.iter().map(String::as_str).take(SHOWN).collect();
        let more = match lost.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("; not named here, these bindings would go: {}{more}", shown.join(", "))
    }

    /// An exchange or a queue: missing, as wanted, or other than wanted.
    async fn declared(&self, connection: &Connection, thing: &Thing) -> Result<(Act, String)> {
        let messages = match self.declare(connection, thing, true).await {
            Ok(messages) => messages,
            Err(error) if said(&error) == Some(NOT_FOUND) => {
                return Ok((Act::Create, thing.description()));
            }
            Err(error) => return Err(self.error(&error)),
        };
        match self.declare(connection, thing, false).await {
            Ok(_) => Ok((Act::Ok, thing.description())),
            Err(error) if said(&error) == Some(PRECONDITION_FAILED) => {
                let loss = match messages {
                    0 => String::new(),
                    n => format!(", its {n} messages would go"),
                };
                Ok((Act::Replace, reason(&error) + &loss))
            }
            Err(error) => Err(self.error(&error)),
        }
    }

    fn error(&self, error: &lapin::Error) -> relevo_core::Error {
        let kind =
            if error.is_amqp_error() { Kind::DestinationRefused } else { Kind::DestinationDown };
        failed(kind, format!("{}: {}", self.config.address(), reason(error)))
    }

    /// On a channel of its own, because an answer other than yes closes it. Tells how many messages wait in a queue.
    async fn declare(
        &self,
        connection: &Connection,
        thing: &Thing,
        passive: bool,
    ) -> lapin::Result<u32> {
        let channel = connection.create_channel().await?;
        match thing {
            Thing::Exchange { name, kind } => {
                let options = ExchangeDeclareOptions {
                    durable: true,
                    passive,
                    ..ExchangeDeclareOptions::default()
                };
                let routing = match kind {
                    Routing::Topic => ExchangeKind::Topic,
                    Routing::Direct => ExchangeKind::Direct,
                    Routing::Fanout => ExchangeKind::Fanout,
                    Routing::Hash => ExchangeKind::Custom(kind.as_str().into()),
                };
                let arguments = exchange_table(*kind);
                channel.exchange_declare(short(name)?, routing, options, arguments).await?;
                Ok(0)
            }
            Thing::Queue { name, arguments } => {
                let options = QueueDeclareOptions {
                    durable: true,
                    passive,
                    ..QueueDeclareOptions::default()
                };
                let queue = channel.queue_declare(short(name)?, options, table(arguments)).await?;
                Ok(queue.message_count())
            }
            Thing::Binding { exchange, queue, key } => {
                let (queue, exchange, key) = (short(queue)?, short(exchange)?, short(key)?);
                let none = FieldTable::default();
                channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), none).await?;
                Ok(0)
            }
        }
    }

    async fn delete(&self, connection: &Connection, thing: &Thing) -> lapin::Result<()> {
        let channel = connection.create_channel().await?;
        match thing {
            Thing::Exchange { name, .. } => {
                channel.exchange_delete(short(name)?, ExchangeDeleteOptions::default()).await
            }
            Thing::Queue { name, .. } => {
                channel.queue_delete(short(name)?, QueueDeleteOptions::default()).await.map(drop)
            }
            Thing::Binding { exchange, queue, key } => {
                let (queue, exchange, key) = (short(queue)?, short(exchange)?, short(key)?);
                channel.queue_unbind(queue, exchange, key, FieldTable::default()).await
            }
        }
    }

    async fn apply_over(
        &self,
        connection: &Connection,
        force: bool,
        done: Told<'_>,
    ) -> Result<Plan> {
        let steps = self.compare(connection).await?;
        let plan = Plan::new(steps.iter().map(|(step, _)| step.clone()).collect());
        plan.allow(force)?;
        let replaced = |name: &str| {
            plan.steps.iter().any(|step| step.act == Act::Replace && step.name == name)
        };
        for (step, thing) in &steps {
            // What is made anew has lost its bindings.
            let act = match thing {
                Thing::Binding { exchange, queue, .. }
                    if step.act == Act::Ok && (replaced(exchange) || replaced(queue)) =>
                {
                    Act::Create
                }
                _ => step.act,
            };
            let carried_out = self.carry_out(connection, act, thing).await;
            carried_out.map_err(|error| self.error(&error))?;
            done(&Step::new(act, step.what, &step.name, &step.text));
        }
        Ok(plan)
    }

    async fn carry_out(
        &self,
        connection: &Connection,
        act: Act,
        thing: &Thing,
    ) -> lapin::Result<()> {
        if !act.is_safe() {
            self.delete(connection, thing).await?;
        }
        match act {
            Act::Create | Act::Ensure | Act::Replace => {
                self.declare(connection, thing, false).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

fn bound(thing: &Thing, bindings: &Result<Vec<Bound>, String>) -> (Act, String) {
    let Thing::Binding { exchange, queue, key } = thing else { return (Act::Ok, String::new()) };
    let is_it = |binding: &Bound| {
        binding.source == *exchange && binding.destination == *queue && binding.routing_key == *key
    };
    match bindings {
        Ok(all) if all.iter().any(is_it) => (Act::Ok, key.clone()),
        Ok(_) => (Act::Create, key.clone()),
        Err(why) => (Act::Ensure, format!("{key} (the management API does not tell: {why})")),
    }
}

fn said(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

fn short(name: &str) -> lapin::Result<ShortString> {
    let too_long =
        |error| std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("{name:?}: {error}"));
    Ok(ShortString::try_new(name).map_err(too_long)?)
}

#[async_trait]
impl Topology for RabbitMqAdmin {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn plan(&self) -> Result<Plan> {
        let connection = self.connect().await?;
        let compared = self.compare(&connection).await;
        self.hang_up(connection).await;
        Ok(Plan::new(compared?.into_iter().map(|(step, _)| step).collect()))
    }

    async fn apply_telling(&self, force: bool, done: Told<'_>) -> Result<Plan> {
        let connection = self.connect().await?;
        let applied = self.apply_over(&connection, force, done).await;
        self.hang_up(connection).await;
        applied
    }
}

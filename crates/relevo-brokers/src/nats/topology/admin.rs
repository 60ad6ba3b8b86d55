use super::rehearsal::rehearse;
use super::{NatsTopology, differ};
use crate::nats::connect::{connect, error};
use crate::nats::subscriber::{NatsConsumer, context, no_stream};
use crate::nats::{NAME, NatsConfig};
use async_nats::jetstream::Context;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer;
use async_nats::jetstream::context::{
    ConsumerInfoErrorKind, CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, Info};
use async_trait::async_trait;
use relevo_core::broker::{Act, Plan, Step, Told, Topology};
use relevo_core::error::{Kind, Result};
use std::time::Duration;

/// How long the server may take for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// No messages, no answers: a connection for questions.
const BUFFERED: usize = 16;

/// Brings an account to what a [`NatsTopology`] wants.
pub struct NatsAdmin {
    config: NatsConfig,
    topology: NatsTopology,
}

/// One thing that is wanted, and how it gets there.
enum Work {
    Stream { config: Box<Config>, instead_of: Option<Box<Config>>, replicas: Option<usize> },
    Consumer { wanted: Box<NatsConsumer>, anew: bool },
}

impl NatsAdmin {
    /// Compares with the account that `config` connects to.
    pub fn new(config: NatsConfig, topology: NatsTopology) -> Self {
        Self { config, topology }
    }

    async fn connect(&self) -> Result<(Context, bool)> {
        // Making or deleting a stream is work for the disk, and takes longer than storing a message.
        let patient = self.config.clone().ack_timeout(self.config.ack_timeout.max(PATIENCE));
        let connection = connect(&patient, BUFFERED).await?;
        let clustered = connection.client.server_info().cluster.is_some();
        Ok((context(&self.config, &connection), clustered))
    }

    async fn compare(&self, context: &Context, clustered: bool) -> Result<Vec<(Step, Work)>> {
        let mut steps = Vec::new();
        for (name, stream) in self.topology.streams() {
            let found = found_stream(&self.config, context, &name).await?;
            let before = found.as_ref().map(|info| info.config.clone());
            let wanted = stream.over(before, &name, clustered);
            let (act, text, anew) = match &found {
                None => (Act::Create, format!("for {}", wanted.subjects.join(", ")), false),
                Some(found) => {
                    let different = differ::stream(found, &wanted);
                    let (act, text) = different.verdict();
                    (act, text, different.anew)
                }
            };
            let instead_of = found.as_ref().filter(|_| anew);
            let instead_of = instead_of.map(|found| Box::new(found.config.clone()));
            let (config, replicas) = (Box::new(wanted), stream.replicas);
            let work = Work::Stream { config, instead_of, replicas };
            steps.push((Step::new(act, "stream", &name, text), work));
            for (consumer, spec) in &stream.consumers {
                let wanted = spec.named(&name, consumer);
                // A stream that is made anew has no consumers.
                let there = found.is_some() && !anew;
                steps.push(compare_consumer(context, wanted, there).await?);
            }
        }
        Ok(steps)
    }
}

async fn compare_consumer(
    context: &Context,
    wanted: NatsConsumer,
    there: bool,
) -> Result<(Step, Work)> {
    let found = if there { found_consumer(context, &wanted).await? } else { None };
    let (act, text, anew) = match &found {
        None => (Act::Create, String::new(), false),
        Some(found) => {
            let different = differ::consumer(found, &wanted.wanted());
            let (act, text) = different.verdict();
            (act, text, different.anew)
        }
    };
    let name = format!("{}/{}", wanted.stream, wanted.name);
    Ok((Step::new(act, "consumer", name, text), Work::Consumer { wanted: Box::new(wanted), anew }))
}

async fn found_stream(config: &NatsConfig, context: &Context, name: &str) -> Result<Option<Info>> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().clone())),
        Err(cause) => match cause.kind() {
            GetStreamErrorKind::JetStream(inner)
                if inner.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(no_stream(config, name, &cause)),
        },
    }
}

async fn found_consumer(
    context: &Context,
    wanted: &NatsConsumer,
) -> Result<Option<consumer::Config>> {
    let failed = |cause: String| refused(format!("consumer {}: {cause}", wanted.name));
    let stream = context.get_stream_no_info(&wanted.stream).await;
    let stream = stream.map_err(|cause| failed(cause.to_string()))?;
    match stream.consumer_info(&wanted.name).await {
        Ok(info) => Ok(Some(info.config)),
        Err(cause) if cause.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
        Err(cause) => Err(failed(cause.to_string())),
    }
}

async fn carry_out(context: &Context, step: &Step, work: Work) -> Result<()> {
    let failed = |cause: String| refused(format!("{step}: {cause}"));
    match work {
        _ if step.act == Act::Ok => Ok(()),
        Work::Stream { config, instead_of, replicas } => {
            let anew = instead_of.is_some();
            if let Some(old) = instead_of {
                rehearse(context, &old, &config).await.map_err(&failed)?;
                let gone = context.delete_stream(&config.name).await;
                gone.map_err(|cause| failed(cause.to_string()))?;
            }
            let made = if anew || step.act == Act::Create {
                create(context, *config, replicas).await
            } else {
                context.update_stream(*config).await.map(drop)
            };
            made.map_err(|cause| failed(cause.to_string()))
        }
        Work::Consumer { wanted, anew } => {
            let stream = context.get_stream_no_info(&wanted.stream).await;
            let stream = stream.map_err(|cause| failed(cause.to_string()))?;
            if anew {
                let gone = stream.delete_consumer(&wanted.name).await;
                gone.map_err(|cause| failed(cause.to_string()))?;
            }
            if anew || step.act == Act::Create {
                let made = stream.create_consumer(wanted.wanted()).await;
                made.map(drop).map_err(|cause| failed(cause.to_string()))
            } else {
                let changed = stream.update_consumer(wanted.wanted()).await;
                changed.map(drop).map_err(|cause| failed(cause.to_string()))
            }
        }
    }
}

/// A server with leaves names a cluster that it has not, and a domain is of another server than the one that is spoken to:
/// only JetStream itself knows that it is alone.
async fn create(
    context: &Context,
    config: Config,
    replicas: Option<usize>,
) -> Result<(), CreateStreamError> {
    let alone = Config { num_replicas: 1, ..config.clone() };
    let made = context.create_stream(config).await.map(drop);
    let Err(cause) = &made else { return made };
    let CreateStreamErrorKind::JetStream(told) = cause.kind() else { return made };
    if replicas.is_none() && told.error_code() == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED {
        return context.create_stream(alone).await.map(drop);
    }
    made
}

fn refused(why: String) -> relevo_core::Error {
    error(Kind::DestinationRefused, why)
}

#[async_trait]
impl Topology for NatsAdmin {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn plan(&self) -> Result<Plan> {
        let (context, clustered) = self.connect().await?;
        let steps = self.compare(&context, clustered).await?;
        Ok(Plan::new(steps.into_iter().map(|(step, _)| step).collect()))
    }

    async fn apply_telling(&self, force: bool, done: Told<'_>) -> Result<Plan> {
        let (context, clustered) = self.connect().await?;
        let steps = self.compare(&context, clustered).await?;
        let plan = Plan::new(steps.iter().map(|(step, _)| step.clone()).collect());
        plan.allow(force)?;
        for (step, work) in steps {
            carry_out(&context, &step, work).await?;
            done(&step);
        }
        Ok(plan)
    }
}

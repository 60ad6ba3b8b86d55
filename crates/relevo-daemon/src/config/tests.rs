use super::*;
use relevo_core::ErrorClass;
use relevo_core::outbox::Start;
use relevo_core::relay::{AfterDead, Order};
use relevo_core::retry::RetryPolicy;

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<Config> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::read("relevo.toml", text, variables.collect::<Vec<_>>().into_iter())
}

fn read(text: &str) -> Result<Config> {
    read_with(text, &[])
}

fn refused(text: &str) -> String {
    let error = read(text).expect_err("it should be refused");
    assert_eq!(error.kind(), Kind::InvalidConfig);
    error.message().to_owned()
}

const SHOP: &str = r#"
[store.main]
url = "sqlite:shop.db"
[broker.hook]
url = "http://127.0.0.1:1/x"
[subscription.notify]
topics = ["order.*", "ticket.#"]
retry = "slow"
start = 2026-01-31T08:00:00Z
after_dead = "hold"
batch = 7
[retry.slow]
kind = "ladder"
delays = ["1m", "5m"]
"#;

/// Is it `key = value`, rather than a sentence with an equals sign in it?
fn is_key(line: &str) -> bool {
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    line.split_once(" = ").is_some_and(|(name, _)| !name.is_empty() && plain(name))
}

/// The example with every `# key = value` line taken out of its comment.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) && !rest.contains("path/to") => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    example::full().lines().map(line).collect()
}

#[test]
fn a_file_says_what_it_means() {
    let config = read(SHOP).unwrap();
    let notify = &config.subscriptions["notify"];
    assert_eq!((notify.store.as_str(), notify.to.as_str()), ("main", "hook"));
    assert_eq!(notify.relay.batch, 7);
    assert_eq!(notify.relay.after_dead, AfterDead::Hold);
    assert_eq!(
        notify.relay.retry,
        RetryPolicy::ladder([Duration::from_secs(60), Duration::from_secs(300)])
    );
    assert!(
        matches!(notify.subscription.start, Start::Time(time) if time.to_rfc3339() == "2026-01-31T08:00:00+00:00")
    );
    assert_eq!(notify.subscription.topics.len(), 2);
}

#[test]
fn the_example_shows_the_real_defaults() {
    let text = uncommented();
    let config = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let notify = &config.subscriptions["notify"];
    assert_eq!(notify.relay, RelayConfig::default());
    assert_eq!(notify.handler_limit, HANDLER_LIMIT);
    assert_eq!(notify.subscription.start, Start::Beginning);
    assert_eq!((config.limits, config.retention), (Limits::default(), Retention::default()));
    assert_eq!((config.service.as_str(), config.listen.to_string().as_str()), ("relevo", LISTEN));
    assert_eq!(config.drain, DRAIN);
    read(&example::full()).unwrap();
}

/// The adapters have defaults of their own: what the example shows is what they are.
#[cfg(all(feature = "nats", feature = "rabbitmq"))]
#[test]
fn the_example_shows_the_defaults_of_the_adapters() {
    use relevo_brokers::{nats::NatsConfig, rabbitmq::RabbitMqConfig};
    let config = read(&uncommented()).unwrap();
    let options = &config.brokers["rabbit"].options;
    let real = RabbitMqConfig::to("amqp://h").unwrap();
    assert_eq!(options.exchange.as_deref(), Some(real.exchange.as_str()));
    assert_eq!(options.routes, real.routes);
    assert_eq!(
        (options.window, options.window_bytes),
        (Some(real.window), Some(real.window_bytes))
    );
    assert_eq!(options.confirm_timeout, Some(real.confirm_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
    assert_eq!(options.blocked_limit, Some(real.blocked_limit));
    assert_eq!(options.max_message_bytes, Some(real.max_message_bytes));
    let options = &config.brokers["nats"].options;
    let real = NatsConfig::to("nats://h").unwrap();
    let window = (Some(real.max_in_flight), Some(real.max_in_flight_bytes));
    assert_eq!((options.window, options.window_bytes), window);
    assert_eq!(options.confirm_timeout, Some(real.ack_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
}

#[cfg(feature = "kafka")]
#[test]
fn the_example_shows_the_defaults_of_kafka_and_every_key_of_its_topics() {
    use relevo_brokers::kafka::{Compression, KafkaConfig, Mechanism};
    let config = read(&uncommented()).unwrap();
    let options = &config.brokers["kafka"].options;
    let real = KafkaConfig::to("kafka://h").unwrap();
    let window = (Some(real.max_in_flight), Some(real.max_in_flight_bytes));
    assert_eq!((options.window, options.window_bytes), window);
    assert_eq!(options.confirm_timeout, Some(real.ack_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
    assert_eq!(options.linger, Some(real.linger));
    assert_eq!(options.max_message_bytes, Some(real.max_message_bytes));
    assert_eq!(options.compression.as_deref(), Some(Compression::default().as_str()));
    assert_eq!(options.sasl_mechanism.as_deref(), Some(Mechanism::default().as_str()));
    let wrong = format!("{}\n[topology.kafka.topics.other]\nnosuchkey = 1\n", uncommented());
    let message = refused(&wrong);
    let (_, known) = message.split_once("(known here: ").unwrap_or_else(|| panic!("{message}"));
    for key in known.trim_end().trim_end_matches(')').split(", ") {
        assert!(uncommented().contains(key), "the example does not show {key} of a topic");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_has_the_options_of_its_adapter_and_shows_no_password() {
    let of = |more: &str| {
        format!(
            "[broker.k]\nurl = \"kafkas://app:s3cret@k1,k2:9094\"\n{more}\n[subscription.s]\n\
             [store.s]\nurl = \"sqlite:s.db\"\n"
        )
    };
    let config = read(&of("compression = \"zstd\"\ntopic_prefix = \"shop.\"\nlinger = \"5ms\""));
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let broker = &config.brokers["k"];
    assert_eq!(broker.to_string(), "kafkas://k1:9092,k2:9094");
    assert_eq!(broker.options.linger, Some(Duration::from_millis(5)));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
    for (more, told) in [
        ("compression = \"gzip\"", "\"gzip\" is none of none, snappy, lz4, zstd"),
        ("sasl_mechanism = \"GSSAPI\"", "is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("ca_file = \"/no/ca.pem\"", "/no/ca.pem cannot be read"),
        ("stream = \"S\"", "stream is for nats://, tls://"),
    ] {
        let message = refused(&of(more));
        assert!(message.contains(told) && !message.contains("s3cret"), "{more}\n=> {message}");
    }
}

#[cfg(all(feature = "nats", feature = "rabbitmq"))]
#[test]
fn the_example_shows_every_key_of_a_topology() {
    use relevo_brokers::{nats::NatsTopology, rabbitmq::topology::RabbitMqTopology};
    let told = |wrong: &str, kind: &str| {
        let message = refused(&format!("{}\n{wrong}\nnosuchkey = 1\n", uncommented()));
        let (_, known) = message.split_once("(known here: ").unwrap_or_else(|| panic!("{message}"));
        let text = uncommented();
        for key in known.trim_end().trim_end_matches(')').split(", ") {
            assert!(text.contains(key), "the example does not show {key} of {kind}");
        }
    };
    told("[topology.rabbit.queues.other]", "a queue");
    told("[topology.rabbit.exchanges.other]", "an exchange");
    told("[topology.nats.streams.OTHER]", "a stream");
    told("[topology.nats.streams.EVENTS.consumers.other]", "a consumer");
    let table: toml::Table = toml::from_str(&uncommented()).unwrap();
    let of = |name: &str| table["topology"][name].clone();
    let rabbit = RabbitMqTopology::deserialize(of("rabbit")).unwrap();
    assert_eq!(rabbit.ladder("billing").len(), 3);
    let nats = NatsTopology::deserialize(of("nats")).unwrap();
    assert_eq!(nats.consumer("EVENTS", "billing").unwrap().filters, ["order.paid"]);
}

/// A key that is missing in the list of numbers or lists could not be overridden: its text would be refused.
#[test]
fn a_variable_can_override_every_key_of_the_example() {
    fn visit(table: &toml::Table, path: &str, into: &mut Vec<(String, String)>) {
        for (key, value) in table {
            let name = format!("{path}__{}", key.to_uppercase().replace('-', "_"));
            match value {
                toml::Value::Table(inner) if key != "bind" => visit(inner, &name, into),
                toml::Value::Array(items) if items.iter().all(toml::Value::is_str) => {
                    let items: Vec<&str> = items.iter().filter_map(toml::Value::as_str).collect();
                    into.push((name, items.join(",")));
                }
                toml::Value::Table(_) | toml::Value::Array(_) => {}
                toml::Value::String(text) => into.push((name, text.clone())),
                other => into.push((name, other.to_string())),
            }
        }
    }
    let (text, mut variables) = (uncommented(), Vec::new());
    visit(&toml::from_str(&text).unwrap(), "RELEVO", &mut variables);
    assert!(variables.len() > 60, "{}", variables.len());
    for (name, value) in variables.into_iter().filter(|(name, _)| !name.ends_with("__ROUTES")) {
        let read = Config::read("relevo.toml", &text, [(name.clone(), value.clone())].into_iter());
        assert!(read.is_ok(), "{name}={value}: {}", read.unwrap_err());
    }
}

#[test]
fn the_first_file_is_valid_with_and_without_its_comments() {
    read(&example::first(example::FIRST_STORE)).unwrap();
    let text: String = example::first("sqlite:a\"b.db")
        .lines()
        .skip_while(|line| !line.starts_with("[store"))
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || is_key(rest) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(config.subscriptions["notify"].to, "out");
    assert_eq!(config.stores["main"].expose(), "sqlite:a\"b.db");
}

#[test]
fn an_unknown_key_is_told_with_its_line_and_the_nearest_known_one() {
    let message =
        refused("[store.main]\nurl = \"sqlite:x.db\"\n[subscription.a]\ntpoics = [\"#\"]\n");
    assert!(
        message
            .starts_with("relevo.toml, line 4: unknown key \"tpoics\"; did you mean \"topics\"?"),
        "{message}"
    );
    let all = refused(
        "[store.main]\nulr = \"x\"\n[htp]\n[retry.x.poison]\nmax_attemps = 3\nbase = \"1s\"\n",
    );
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 3, "{all}");
    for (line, told) in [
        ("line 2", "\"ulr\"; did you mean \"url\"?"),
        ("line 3", "\"htp\""),
        ("line 5", "\"max_attemps\""),
    ] {
        assert!(lines.iter().any(|one| one.contains(line) && one.contains(told)), "{told}: {all}");
    }
    let message = refused("[subscriptions.a]\n");
    assert!(
        message.contains("line 1") && message.contains("did you mean \"subscription\"?"),
        "{message}"
    );
}

#[test]
fn every_wrong_value_is_told_at_once() {
    let text = SHOP
        .replace("retry = \"slow\"", "retry = \"slwo\"\nto = \"hoook\"")
        .replace("order.*", "order*");
    let message = refused(&text);
    assert!(
        message.contains(
            "line 8: subscription.notify.retry: there is no [retry.slwo]; did you mean \"slow\"?"
        ),
        "{message}"
    );
    assert!(
        message.contains("line 9: subscription.notify.to: there is no [broker.hoook]"),
        "{message}"
    );
    assert!(message.contains("line 7: subscription.notify.topics"), "{message}");
}

#[test]
fn what_cannot_be_meant_is_refused_by_its_key() {
    for (wrong, key) in [
        ("[http]\nlisten = \"9464\"", "http.listen"),
        ("[retry.x]\nkind = \"ladder\"", "retry.x.delays"),
        ("[retry.x]\nkind = \"liner\"", "did you mean \"linear\""),
        ("[retry.x]\nkind = \"ladder\"\ndelays = [\"1s\"]\nbase = \"1s\"", "retry.x.base"),
        ("[retry.x]\njitter = 0.9", "retry.x"),
        ("[retry.x]\nclasses = [\"transiet\"]", "did you mean \"transient\""),
        ("[retry.x]\nbase = 10", "a time with its unit"),
        ("[retry.x]\nkind = \"ladder\"\ndelays = [\"9999d\"]", "longer than 365 days"),
        ("[retry.x.transiet]\nmax_attempts = 3", "did you mean \"transient\""),
        ("[retry.x.unknown]\nmax_attemps = 3", "did you mean \"max_attempts\""),
        ("[retry.x.unknown]\nclasses = [\"unknown\"]", "unknown key \"classes\""),
        ("[retry.x.unknown]\nmax_attempts = 0", "retry.x.unknown.max_attempts"),
        ("[retry.x.unknown]\nkind = \"ladder\"", "retry.x.unknown.delays"),
        ("[retry.x.unknown]\ndelays = [\"1s\"]", "this policy is \"exponential\""),
        ("[retry.x.unknown]\njitter = 0.9", "retry.x.unknown: retry policy: jitter"),
        ("[retry.x]\nclasses = [\"transient\"]\n[retry.x.poison]\n", "leaves poison out"),
        ("[limits]\npayload_bytes = 2000000", "limits.payload_bytes"),
        ("[limits]\nlease = \"10ms\"", "limits"),
        ("[retention]\ninbox = \"1d\"", "retention.inbox"),
        ("[broker.x]\nurl = \"mqtt://h\"", "broker.x.url"),
        ("[broker.x]\nurl = \"amqp://h:x\"", "broker.x.url: not an AMQP URL"),
        ("[broker.x]\nurl = \"http://h\"\nexchange = \"e\"", "exchange is for amqp://, amqps://"),
        ("[broker.x]\nurl = \"amqp://h\"\nsecrets = [\"whsec_MfKQ\"]", "secrets is for http://"),
        ("[broker.x]\nurl = \"amqp://h\"\nexchang = \"e\"", "did you mean \"exchange\""),
        ("[broker.x]\nurl = \"amqp://h\"\nca_file = \"ca.pem\"", "ca_file is for amqps://"),
        ("[broker.x]\nurl = \"amqps://h\"\nca_file = \"/no/ca.pem\"", "/no/ca.pem cannot be read"),
        ("[broker.x]\nurl = \"amqps://h\"\nclient_cert = \"c\"", "belong together"),
        ("[broker.x]\nurl = \"amqp://h\"\nwindow = 0", "broker.x.window: at least 1"),
        ("[broker.x]\nurl = \"amqp://h\"\nconfirm_timeout = \"0s\"", "it needs some time"),
        ("[broker.x]\nurl = \"amqp://h\"\nstream = \"S\"", "stream is for nats://, tls://"),
        ("[broker.x]\nurl = \"amqp://h\"\nroutes = [{ topics = \"a*\" }]", "broker.x.routes"),
        ("[broker.x]\nurl = \"amqp://h\"\nroutes = [{ topic = \"a\" }]", "did you mean \"topics\""),
        ("[broker.x]\nurl = \"nats://h/path\"", "broker.x.url: the address of the NATS server"),
        ("[broker.x]\nurl = \"nats://h\"\nexchange = \"e\"", "exchange is for amqp://"),
        (
            "[broker.x]\nurl = \"nats://h\"\nsubjet_prefix = \"e\"",
            "did you mean \"subject_prefix\"",
        ),
        ("[broker.x]\nurl = \"nats://h\"\nwindow = 0", "broker.x.window: at least 1"),
        ("[broker.x]\nurl = \"nats://h\"\nnkey_file = \"/no/seed\"", "/no/seed cannot be read"),
        ("[broker.x]\nurl = \"nats://h\"\ncredentials_file = \"/no/creds\"", "/no/creds cannot be"),
        ("[broker.x]\nurl = \"tls://h\"\nca_file = \"/no/ca.pem\"", "/no/ca.pem cannot be read"),
        ("[broker.x]\nurl = \"nats://h\"\nclient_key = \"k\"", "belong together"),
        ("[subscription.x]\norder = \"keys\"", "did you mean \"key\""),
        ("[subscription.x]\nbatch_byte = 1", "did you mean \"batch_bytes\""),
        ("[limits]\ndrian = \"1s\"", "did you mean \"drain\""),
        ("[store.x]\n", "store.x"),
        ("[store.x]\nurl = \"sqlite:a\"\nurl_file = \"b\"", "store.x.url_file"),
        ("[store.x]\nurl_file = \"/does/not/exist\"", "store.x.url_file"),
        ("[store.\"a b\"]\nurl = \"sqlite:a\"", "store.a b"),
        ("x = ", "line 1"),
    ] {
        let message = refused(wrong);
        assert!(message.contains(key), "{wrong}\n=> {message}");
    }
}

fn policy(retry: &str) -> RetryPolicy {
    let (subscription, _) = SHOP.split_once("[retry.slow]").unwrap();
    let config = read(&format!("{subscription}{retry}")).unwrap_or_else(|error| panic!("{error}"));
    config.subscriptions["notify"].relay.retry.clone()
}

#[test]
fn a_class_may_have_a_policy_of_its_own() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let read = policy(
        "[retry.slow]\nkind = \"ladder\"\ndelays = [\"1m\", \"5m\"]\njitter = 0.1\n\
         [retry.slow.permanent]\nkind = \"linear\"\nstep = \"1h\"\nmax = \"5h\"\n\
         [retry.slow.unknown]\nmax_attempts = 7\n[retry.slow.poison]\n",
    );
    let general = RetryPolicy::ladder([minutes(1), minutes(5)]).jitter(0.1);
    let meant = general
        .clone()
        .for_class(ErrorClass::Permanent, RetryPolicy::linear(minutes(60), minutes(300)))
        .for_class(ErrorClass::Unknown, general.clone().max_attempts(7))
        .for_class(ErrorClass::Poison, general);
    assert_eq!(read, meant);
}

#[test]
fn classes_that_list_a_class_with_its_own_policy_agree_with_it() {
    let read =
        policy("[retry.slow]\nclasses = [\"poison\"]\n[retry.slow.poison]\nmax_attempts = 2");
    let meant = RetryPolicy::default()
        .retry_classes([ErrorClass::Poison])
        .for_class(ErrorClass::Poison, RetryPolicy::default().max_attempts(2));
    assert_eq!(read, meant);
}

#[test]
fn what_is_wrong_in_general_is_not_told_again_for_each_class() {
    let message = refused(
        "[retry.x]\nkind = \"liner\"\n[retry.x.unknown]\nmax_attempts = 2\n[retry.y]\nbase = \"1s\"\nstep = \"1s\"\n[retry.y.poison]\n",
    );
    assert_eq!(message.lines().count(), 2, "{message}");
}

#[test]
fn a_variable_reaches_the_policy_of_a_class() {
    let text = format!("{SHOP}[retry.slow.unknown]\n");
    let config = read_with(&text, &[("RELEVO__RETRY__SLOW__UNKNOWN__MAX_ATTEMPTS", "9")]).unwrap();
    let ladder = RetryPolicy::ladder([Duration::from_secs(60), Duration::from_secs(300)]);
    let meant = ladder.clone().for_class(ErrorClass::Unknown, ladder.max_attempts(9));
    assert_eq!(config.subscriptions["notify"].relay.retry, meant);
}

#[test]
fn a_password_never_appears_in_an_error() {
    for text in [
        "[store]\nmain = \"postgres://u:s3cret@h/d\"",
        "[store.main]\nurl = \"postgre://u:s3cret@h/d\"",
        "[store.main]\nurll = \"postgres://u:s3cret@h/d\"",
        "[store.main]\nurl = \"postgres://u:s3cret@h/d",
        "[broker.x]\nurl = \"amqp://u:s3cret@h:port\"",
        "[broker.x]\nurl = \"amqp://u:s3cret@h\"\nwindow = 0",
        "[broker.x]\nurl = \"nats://s3cret@h/path\"",
        "[broker.x]\nurl = \"nats://u:s3cret@h\"\nwindow = 0",
        "[broker.x]\nurl = \"http://h\"\nsecrets = \"s3cret\"",
        "[broker.x]\nurl = \"http://h\"\nsecrets = [\"s3cret\"]",
    ] {
        let message = refused(text);
        assert!(!message.contains("s3cret"), "{message}");
    }
    let config = read("[store.main]\nurl = \"postgres://u:s3cret@h/d\"").unwrap();
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn a_variable_overrides_the_file_and_is_named_when_it_is_wrong() {
    let config = read_with(
        SHOP,
        &[("RELEVO__STORE__MAIN__URL", "sqlite:other.db"), ("RELEVO_STORE", "ignored")],
    )
    .unwrap();
    assert_eq!(config.stores["main"].expose(), "sqlite:other.db");
    let config =
        read_with("[store.main]\n", &[("RELEVO__STORE__MAIN__URL", "sqlite:only.db")]).unwrap();
    assert_eq!(config.stores["main"].expose(), "sqlite:only.db");
    let error = read_with(SHOP, &[("RELEVO__SUBSCRIPTION__NOTIFY__RETRY", "none")]).unwrap_err();
    assert!(error.message().starts_with("variable RELEVO__SUBSCRIPTION__NOTIFY__RETRY"), "{error}");
    let error = read_with(SHOP, &[("RELEVO__SUBSCRIPTION__NOTIFY__BATHC", "1")]).unwrap_err();
    assert!(
        error.message().contains("BATHC") && error.message().contains("did you mean \"batch\""),
        "{error}"
    );
}

#[test]
fn a_secret_can_live_in_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    std::fs::write(&file, "postgres://u:s3cret@h/d\n").unwrap();
    let config =
        read(&format!("[store.main]\nurl_file = {:?}", file.display().to_string())).unwrap();
    assert_eq!(config.stores["main"].expose(), "postgres://u:s3cret@h/d");
}

#[test]
fn the_store_meant_is_the_named_one_or_the_only_one() {
    let config = read("[store.a]\nurl = \"sqlite:a\"\n[store.b]\nurl = \"sqlite:b\"").unwrap();
    assert!(config.store(None).unwrap_err().message().contains("--store a"));
    assert_eq!(config.store(Some("b")).unwrap().expose(), "sqlite:b");
    assert!(config.store(Some("c")).is_err());
    assert_eq!(read(SHOP).unwrap().store(None).unwrap().expose(), "sqlite:shop.db");
}

#[test]
fn listening_beyond_loopback_is_said_aloud() {
    assert!(read(SHOP).unwrap().warnings.is_empty());
    assert_eq!(read("[http]\nlisten = \"0.0.0.0:9464\"").unwrap().warnings.len(), 1);
}

#[test]
fn a_broker_has_the_options_of_its_adapter() {
    let text = "[broker.rabbit]\nurl = \"amqp://u:s3cret@h/shop\"\nexchange = \"orders\"\nwindow = 7\nconfirm_timeout = \"3s\"";
    let config = read(text).unwrap();
    let broker = &config.brokers["rabbit"];
    assert_eq!(broker.options.exchange.as_deref(), Some("orders"));
    assert_eq!(broker.options.window, Some(7));
    assert_eq!(broker.options.confirm_timeout, Some(Duration::from_secs(3)));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
}

#[test]
fn a_nats_server_has_the_options_of_its_adapter_and_shows_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seed");
    std::fs::write(&file, "SUs3cret\n").unwrap();
    let text = format!(
        "[broker.n]\nurl = \"nats://s3cret@n1:4222,n2\"\nstream = \"ORDERS\"\nsubject_prefix = \"shop\"\n\
         domain = \"hub\"\nwindow = 7\nwindow_bytes = 8\nconfirm_timeout = \"3s\"\nconnect_timeout = \"4s\"\n\
         nkey_file = {:?}\n[subscription.s]\n[store.s]\nurl = \"sqlite:s.db\"\n",
        file.display().to_string()
    );
    let config = read(&text).unwrap_or_else(|error| panic!("{error}"));
    let broker = &config.brokers["n"];
    assert_eq!(broker.to_string(), "nats://n1:4222,nats://n2:4222");
    assert_eq!(broker.options.nkey.as_ref().unwrap().expose(), "SUs3cret");
    assert_eq!(broker.options.stream.as_deref(), Some("ORDERS"));
    assert_eq!(broker.options.connect_timeout, Some(Duration::from_secs(4)));
    assert!(config.subscriptions["s"].subscription.destination.contains("n1:4222"));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
}

const LAID_OUT: &str = r#"
[broker.rabbit]
url = "amqp://h"
[broker.nats]
url = "nats://h"
[broker.hook]
url = "http://h"
[topology.rabbit.queues.jobs]
bind = { events = ["order.#"] }
[topology.nats.streams.ORDERS]
subjects = ["order.>"]
"#;

#[test]
fn a_topology_is_that_of_its_broker() {
    let config = read(LAID_OUT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.topologies.keys().collect::<Vec<_>>(), ["nats", "rabbit"]);
}

#[test]
fn what_is_wrong_in_a_topology_is_told_with_its_line_and_the_nearest_key() {
    for (wrong, told) in [
        ("max_lenght = 3", "line 10: topology.rabbit.queues.jobs.max_lenght: unknown key"),
        ("max_lenght = 3", "did you mean \"max_length\"?"),
        ("max_length = \"many\"", "line 10: topology.rabbit.queues.jobs.max_length: a text stands"),
        ("message_ttl = \"soon\"", "is not a time with its unit"),
        ("kind = \"mirrored\"", "line 10: topology.rabbit.queues.jobs.kind: unknown variant"),
        ("[topology.hook]\n", "topology.hook: a destination of the kind http, https has no"),
        ("[topology.rabit]\n", "there is no [broker.rabit]; did you mean \"rabbit\"?"),
        ("[topology.nats.stream]\n", "did you mean \"streams\"?"),
        ("[topology.nats.streams.A.consumer]\n", "did you mean \"consumers\"?"),
    ] {
        let at = "[\"order.#\"] }\n";
        let text = LAID_OUT.replace(at, &format!("{at}{wrong}\n"));
        let text = match wrong.starts_with('[') {
            true => format!("{LAID_OUT}{wrong}"),
            false => text,
        };
        let message = refused(&text);
        assert!(message.contains(told), "{wrong}\n=> {message}");
    }
}

#[test]
fn a_variable_reaches_into_a_topology_and_is_named_when_it_is_wrong() {
    let name = "RELEVO__TOPOLOGY__RABBIT__QUEUES__JOBS__MAX_LENGTH";
    read_with(LAID_OUT, &[(name, "7")]).unwrap();
    let error = read_with(LAID_OUT, &[(name, "many")]).unwrap_err();
    assert!(error.message().starts_with(&format!("variable {name}")), "{error}");
}

#[test]
fn order_windows_and_the_limit_of_a_drain_are_configuration() {
    let text = SHOP.replace("batch = 7", "batch = 7\nbatch_bytes = 1000\norder = \"any\"");
    let config = read(&format!("{text}[limits]\ndrain = \"3s\"\nqueue_bytes = 5\n")).unwrap();
    let relay = &config.subscriptions["notify"].relay;
    assert_eq!((relay.batch, relay.batch_bytes, relay.queue_bytes), (7, 1000, 5));
    assert_eq!((relay.order, config.drain), (Order::Any, Duration::from_secs(3)));
}

const ADOPTED: &str = r#"
[store.main]
url = "sqlite:app.db"
[broker.out]
url = "stdout:"
[adopt.tickets]
preset = "smartedify"
[adopt.tickets.columns]
error_class = ""
sequence = "position"
[subscription.tickets]
adopt = "tickets"
"#;

#[test]
fn an_adopted_table_is_a_preset_and_what_differs_from_it() {
    use relevo_core::outbox::adopt::Role;
    let config = read(ADOPTED).unwrap();
    assert_eq!(config.subscriptions["tickets"].adopt.as_deref(), Some("tickets"));
    let mapping = &config.adopted["tickets"].mapping;
    assert_eq!(mapping.table.to_string(), "outbox_events");
    assert_eq!(mapping.column(Role::ErrorClass), None);
    assert_eq!(mapping.column(Role::Sequence), Some("position"));
    assert_eq!(mapping.column(Role::PublishedAt), Some("published_at"));
}

#[test]
fn a_mapping_that_is_written_out_is_read_as_it_was() {
    let text = format!(
        "{}\n[adopt.words]\ntable = \"a.b\"\ndelete = false\ntopic = \"x.y\"\nkey_path = \"a.b\"
[adopt.words.status]\ncolumn = \"s\\\"t\"\npending = [\"N\"]\npublished = \"P\"\ndead = \"D\"
[adopt.words.dead_letters]\ntable = \"d\"\ncolumns = {{ error = \"why\" }}\n",
        ADOPTED
    );
    let config = read(&text).unwrap();
    for (name, adopted) in &config.adopted {
        let own = super::adopt::written(name, Some("main"), &adopted.mapping);
        let text = format!("[store.main]\nurl = \"sqlite:app.db\"\n{own}");
        let again = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        // A preset's column that is not there is not there in what is written out either.
        assert_eq!(again.adopted[name], *adopted, "{own}");
    }
}

#[test]
fn what_cannot_be_meant_of_an_adopted_table_is_told() {
    for (from, to, told) in [
        ("smartedify", "smartedfy", "did you mean \"smartedify\"?"),
        ("sequence = \"position\"", "sequense = \"position\"", "did you mean \"sequence\"?"),
        (
            "[adopt.tickets.columns]",
            "dead_leters = {}\n[adopt.tickets.columns]",
            "did you mean \"dead_letters\"?",
        ),
        (
            "adopt = \"tickets\"",
            "adopt = \"ticket\"",
            "there is no [adopt.ticket]; did you mean \"tickets\"?",
        ),
        ("adopt = \"tickets\"", "adopt = \"tickets\"\ntopics = [\"a\"]", "relayed whole"),
        ("preset = \"smartedify\"", "", "table is missing"),
        (
            "[subscription.tickets]",
            "[subscription.more]\nadopt = \"tickets\"\n[subscription.tickets]",
            "relayed by subscription more already",
        ),
        ("preset = \"smartedify\"", "preset = \"smartedify\"\ndelete = true", "deleted and marked"),
        (
            "preset = \"smartedify\"",
            "preset = \"smartedify\"\nkey_path = \"a\"\ntopic = \"b\"\ntopic_prefix = \"c\"",
            "keep one",
        ),
        (
            "preset = \"smartedify\"",
            "preset = \"smartedify\"\nstatus = { column = \"s\", pending = [\"N\"] }",
            "published is missing",
        ),
    ] {
        let text = ADOPTED.replacen(from, to, 1);
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(told), "{told}: {error}");
    }
}

//! What cannot be meant is refused: by its key and its line, all of it at once, and without its passwords.

use super::{SHOP, read, refused};

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
        (
            "[broker.x]\nurl = \"amqp://h\"\nconfirm_timeout = \"61s\"",
            "broker.x.confirm_timeout: at most 1m",
        ),
        (
            "[broker.x]\nurl = \"nats://h\"\nconfirm_timeout = \"5m\"",
            "nobody else may have the lane",
        ),
        (
            "[broker.x]\nurl = \"amqp://h\"\nwindow = 100001",
            "line 3: broker.x.window: at most 100000 with RabbitMQ",
        ),
        (
            "[broker.x]\nurl = \"amqps://h\"\nwindow_bytes = 1073741825",
            "broker.x.window_bytes: at most 1073741824 with RabbitMQ",
        ),
        (
            "[broker.x]\nurl = \"amqp://h\"\nblocked_limit = \"2m\"",
            "broker.x.blocked_limit: at most 1m",
        ),
        (
            "[broker.x]\nurl = \"nats://h\"\nconnect_timeout = \"2m\"",
            "broker.x.connect_timeout: at most 1m",
        ),
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

#[test]
fn inbox_rows_that_would_not_outlive_every_replay_are_refused_with_what_would_do() {
    for (reach, too_short, enough) in [
        ("", "90d", "99d"),
        ("", "98d23h", "99d"),
        ("events = \"100d\"\n", "100d", "110d"),
        ("events = \"1h\"\ndead_letters = \"1h\"\n", "1h", "1h6m"),
        ("events = \"0s\"\ndead_letters = \"0s\"\n", "0s", "1ms"),
    ] {
        let table = |inbox: &str| format!("[retention]\n{reach}inbox = \"{inbox}\"\n");
        let message = refused(&table(too_short));
        let told = format!("retention.inbox: {too_short} is too short");
        assert!(message.contains(&told), "{message}");
        assert!(message.contains(&format!(" is {enough};")), "{message}");
        let kept = read(&table(enough)).unwrap_or_else(|error| panic!("{error}")).retention;
        assert!(kept.inbox > kept.events.max(kept.dead_letters), "{kept:?}");
    }
}

#[test]
fn inbox_rows_of_which_nothing_is_said_are_kept_long_enough() {
    let days = |text: &str| read(text).unwrap().retention.inbox.as_secs() / 86_400;
    assert_eq!(days(""), 120);
    assert_eq!(days("[retention]\ndead_letters = \"30d\"\n"), 120);
    assert_eq!(days("[retention]\ndead_letters = \"200d\"\n"), 220);
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

/// Otherwise the daemon would find its client refused, and the destination down, for as long as it runs.
#[cfg(feature = "kafka")]
#[test]
fn what_the_client_of_kafka_would_refuse_is_refused_by_its_key() {
    let kafka = "[broker.x]\nurl = \"kafka://h\"\n";
    let range = "broker.x.max_message_bytes: the client takes from 1000 to 1000000000";
    for (wrong, told) in [
        ("max_message_bytes = 999", range),
        ("max_message_bytes = 1000000001", range),
        ("linger = \"30s\"", "broker.x.linger: 30s is no less than confirm_timeout, 30s"),
        ("linger = \"2s\"\nconfirm_timeout = \"1s\"", "line 3: broker.x.linger: 2s is no less"),
        ("compression = \"zip\"", "line 3: broker.x.compression: \"zip\" is none of"),
    ] {
        let message = refused(&format!("{kafka}{wrong}"));
        assert!(message.contains(told), "{wrong}\n=> {message}");
    }
    for taken in ["max_message_bytes = 1000", "linger = \"59s\"\nconfirm_timeout = \"1m\""] {
        read(&format!("{kafka}{taken}")).unwrap_or_else(|error| panic!("{taken}\n=> {error}"));
    }
}

/// Nobody waits for a broker longer than that; an endpoint may take its time.
#[test]
fn the_longest_limits_of_a_broker_are_taken_and_so_is_a_longer_handler_limit() {
    let minute = Some(std::time::Duration::from_secs(60));
    let longest = "confirm_timeout = \"60s\"\nconnect_timeout = \"1m\"\nblocked_limit = \"1m\"";
    let longest = read(&format!("[broker.b]\nurl = \"amqp://h\"\n{longest}")).unwrap();
    let limits = &longest.brokers["b"].options;
    assert_eq!((limits.confirm_timeout, limits.connect_timeout), (minute, minute));
    assert_eq!(limits.blocked_limit, minute);
    let patient = read(
        "[store.s]\nurl = \"sqlite:s.db\"\n[broker.b]\nurl = \"http://h\"\n\
         [subscription.s]\nhandler_limit = \"15m\"",
    );
    let limit = patient.unwrap().subscriptions["s"].handler_limit;
    assert_eq!(limit, std::time::Duration::from_secs(15 * 60));
}

//! What must be there at a broker.

use super::{read, read_with, refused};

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

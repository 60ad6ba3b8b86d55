//! `relevo topology` without a broker: what is refused before anybody is asked.

use crate::support::Scratch;

#[test]
fn without_a_topology_there_is_nothing_to_compare() {
    let scratch = Scratch::empty();
    scratch.write("relevo.toml", "[broker.nats]\nurl = \"nats://127.0.0.1:1\"\n");
    let said = scratch.fails(2, &["topology", "plan"]);
    assert!(said.contains("no [topology.BROKER]"), "{said}");
    let said = Scratch::empty().fails(2, &["topology", "check"]);
    assert!(said.contains("there is no relevo.toml here"), "{said}");
}

#[test]
fn a_broker_that_is_down_is_told_without_its_password() {
    let scratch = Scratch::empty();
    scratch.write(
        "relevo.toml",
        "[broker.nats]\nurl = \"nats://u:s3cret@127.0.0.1:1\"\n[topology.nats.streams.S]\nsubjects = [\"s\"]\n\
         [broker.rabbit]\nurl = \"amqp://u:s3cret@127.0.0.1:1\"\n[topology.rabbit.queues.q]\n",
    );
    for command in ["plan", "apply", "check"] {
        let said = scratch.fails(3, &["topology", command]);
        for told in ["nats: error R0036 (nats)", "rabbit: error R0036 (rabbitmq)", "127.0.0.1:1"] {
            assert!(said.contains(told), "{command}: {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
}

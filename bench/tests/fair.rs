//! The bare clients that Relevo is compared with write the same messages as its adapters.

use std::process::Command;

/// One event by each, read back from NATS, RabbitMQ and Kafka: the bench itself compares them, here and before every
/// drain. A broker that is not on this machine is named.
#[test]
fn bare_clients_write_the_same_headers_and_properties_as_the_adapters() {
    let json = std::env::temp_dir().join(format!("relevo-fair-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_relevo-bench"))
        .args(["fair", "--json"])
        .arg(&json)
        .arg("--into")
        .arg(std::env::temp_dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    for (name, server) in [("NATS", "NATS"), ("RabbitMQ", "RabbitMQ"), ("Kafka", "Apache Kafka")] {
        let same = said.contains(&format!("are the same on {name}"));
        let missing = said.contains(&format!("COULD NOT BE HAD: {server}"));
        assert!(same || missing, "nothing is said of {name}: {said}");
    }
    std::fs::remove_file(json).unwrap();
}

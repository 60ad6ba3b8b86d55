//! A load run is judged by the e-mails that came to it.

use crate::rig::{Process, Rig};
use crate::{PATIENT, is_well};
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

async fn load(rig: &Rig, api: &Process, smtp: SocketAddr, patience: &str) -> (Output, String) {
    let mut command = rig.command("load");
    command.args(["--api", &api.address.to_string(), "--smtp", &smtp.to_string()]);
    command.args(["--seconds", "3", "--per-minute", "600", "--people", "4"]);
    command.args(["--patience", patience]);
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"));
    let output = output.await.expect("it ends");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_run_is_judged_by_the_mails_that_came_to_it() {
    let Some(rig) = Rig::shared().await else { return };
    let (api, elsewhere) = (rig.api(), rig.worker("elsewhere", PATIENT));
    is_well(&api).await;
    is_well(&elsewhere).await;
    let smtp = free_address();
    // The workers say that every event was processed; but its e-mail went to another server.
    let (output, said) = load(&rig, &api, smtp, "3").await;
    assert!(!output.status.success() && said.contains("effects are missing"), "{said}");
    elsewhere.terminate();

    let mut command = rig.command("worker");
    command.env("SMTP_URL", format!("smtp://{smtp}")).env("RETRY_DELAYS_S", PATIENT);
    let _worker = Process::start(command.env("WORKER_NAME", "here"));
    let (output, said) = load(&rig, &api, smtp, "120").await;
    assert!(output.status.success(), "{said}");
    let figure = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.split_whitespace().next().and_then(|it| it.parse::<u64>().ok()).expect("a number")
    };
    assert!(figure("changes accepted") > 0, "{said}");
    assert_eq!((figure("lost"), figure("mailed twice"), figure("dead letters")), (0, 0, 0));
}

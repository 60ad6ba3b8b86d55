//! The servers of the kit themselves: everything else is tested on top of them.

use relevo_testkit::services::{
    self, PgBouncer, Postgres, PostgresOptions, Proxy, ServiceError, sql,
};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tokio_postgres::NoTls;

type TestResult = Result<(), Box<dyn std::error::Error>>;

#[test]
fn every_supported_major_version_starts_as_itself() -> TestResult {
    for major in Postgres::MAJORS {
        let Some(postgres) = services::require(Postgres::start(major)) else { continue };
        let url = postgres.create_database()?;
        let version: u32 = sql::value(&url, "SHOW server_version_num")?.parse()?;
        assert_eq!(version / 10_000, u32::from(major));
        assert_eq!(sql::value(&url, "SHOW wal_level")?, "logical");
    }
    Ok(())
}

#[test]
fn tests_that_share_a_server_do_not_share_a_database() -> TestResult {
    let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(()) };
    let (one, other) = (postgres.create_database()?, Postgres::shared(15)?.create_database()?);
    assert_ne!(one, other);
    sql::execute(&one, "CREATE TABLE t ()")?;
    assert_eq!(sql::value(&other, "SELECT to_regclass('t')")?, "");
    Ok(())
}

#[test]
fn what_was_committed_survives_a_kill_of_the_server_with_its_children() -> TestResult {
    for major in [15, 18] {
        let options = PostgresOptions::new(major).durable();
        let Some(postgres) = services::require(Postgres::start_with(&options)) else { continue };
        let url = postgres.create_database()?;
        sql::execute(
            &url,
            "CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000)",
        )?;
        for _ in 0..2 {
            // A busy child that survived the kill would keep the server from starting again.
            let busy = std::thread::spawn({
                let url = url.clone();
                move || sql::execute(&url, "SELECT pg_sleep(600)")
            });
            until(|| {
                sql::value(
                    &url,
                    "SELECT count(*) > 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep%'",
                )
                .is_ok_and(|busy| busy == "t")
            });
            postgres.kill9();
            assert!(busy.join().unwrap().is_err());
            assert!(sql::execute(&url, "SELECT 1").is_err());
            postgres.restart()?;
            assert_eq!(sql::value(&url, "SELECT sum(n) FROM t")?, "500500");
        }
    }
    Ok(())
}

#[test]
fn a_server_that_is_paused_keeps_its_clients_waiting_and_one_that_is_restarted_keeps_its_rows()
-> TestResult {
    let options = PostgresOptions::new(15);
    let Some(postgres) = services::require(Postgres::start_with(&options)) else { return Ok(()) };
    let url = postgres.create_database()?;
    sql::execute(&url, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)")?;
    postgres.pause();
    let (answered, answers) = std::sync::mpsc::channel();
    let asking = std::thread::spawn({
        let url = url.clone();
        move || {
            let answer = sql::value(&url, "SELECT count(*) FROM t");
            answered.send(()).expect("somebody waits");
            answer
        }
    });
    let silence = answers.recv_timeout(Duration::from_secs(1));
    assert!(silence.is_err(), "it answered while it was paused");
    postgres.resume();
    assert_eq!(asking.join().unwrap()?, "1");
    postgres.restart()?;
    assert_eq!(sql::value(&url, "SELECT count(*) FROM t")?, "1");
    Ok(())
}

#[test]
fn a_wrong_password_is_refused() -> TestResult {
    let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(()) };
    let url = postgres.url("postgres").replace(":relevo@", ":wrong@");
    let error = sql::execute(&url, "SELECT 1").unwrap_err().to_string();
    assert!(error.contains("password authentication failed"), "{error}");
    Ok(())
}

#[test]
fn a_setting_reaches_the_server() -> TestResult {
    let options = PostgresOptions::new(15).setting("max_connections", "17");
    let Some(postgres) = services::require(Postgres::start_with(&options)) else { return Ok(()) };
    assert_eq!(sql::value(&postgres.url("postgres"), "SHOW max_connections")?, "17");
    Ok(())
}

#[test]
fn a_server_ends_with_its_process_even_if_that_is_killed() -> TestResult {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_relevo-services"))
        .args(["postgres", "15"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut url = String::new();
    let mut output = std::io::BufReader::new(owner.stdout.take().ok_or("stdout is a pipe")?);
    std::io::BufRead::read_line(&mut output, &mut url)?;
    if url.is_empty() {
        // It could not start a server; whether that is allowed is decided here.
        services::require(Postgres::shared(15));
        return Ok(());
    }
    let folder = sql::value(url.trim(), "SHOW unix_socket_directories")?;
    assert!(std::path::Path::new(&folder).exists());
    owner.kill()?;
    owner.wait()?;
    until(|| {
        sql::execute(url.trim(), "SELECT 1").is_err() && !std::path::Path::new(&folder).exists()
    });
    Ok(())
}

#[test]
fn pgbouncer_pools_transactions_of_any_database() -> TestResult {
    let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(()) };
    let Some(pgbouncer) = services::require(PgBouncer::start(&postgres)) else { return Ok(()) };
    let url = pgbouncer.url(&postgres.create_database()?);
    assert_eq!(sql::value(&url, "SELECT 1")?, "1");
    let database = url.rsplit('/').next().unwrap_or_default();
    assert_eq!(sql::value(&url, "SELECT current_database()")?, database);
    Ok(())
}

#[test]
fn python_speaks_to_the_server() -> TestResult {
    let Some(python) = services::require(services::python()) else { return Ok(()) };
    let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(()) };
    let program = "import os, psycopg\nprint(psycopg.connect(os.environ['URL']).execute('select 42').fetchone()[0])";
    let output = Command::new(python)
        .args(["-c", program])
        .env("URL", postgres.create_database()?)
        .output()?;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "42", "{output:?}");
    Ok(())
}

#[test]
fn pg_dump_reads_servers_of_its_version_and_older_ones() -> TestResult {
    for major in [15, 18] {
        let found = services::pg_client_for("pg_dump", major);
        let Some(pg_dump) = services::require(found) else { continue };
        let Some(postgres) = services::require(Postgres::shared(major)) else { continue };
        let url = postgres.create_database()?;
        sql::execute(&url, "CREATE TABLE dumped ()")?;
        let output = Command::new(pg_dump).arg(&url).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("CREATE TABLE public.dumped"), "{major}: {output:?}");
    }
    Ok(())
}

#[test]
fn a_server_that_is_nowhere_says_how_to_get_it() {
    let error = Postgres::start(7).unwrap_err();
    assert!(matches!(error, ServiceError::Missing { .. }));
    assert!(error.to_string().contains("cargo xtask test --install"), "{error}");
}

/// A test that needs a server which nobody has: this test binary again, told so by the environment.
#[test]
fn a_test_without_its_server() {
    if std::env::var_os("RELEVO_TEST_OF_SKIPS").is_some() {
        assert!(services::require(Postgres::start(7)).is_none());
    }
}

fn run_without_its_server(note: &std::path::Path, variables: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "a_test_without_its_server", "--nocapture"])
        .env_remove("CI")
        .env_remove("RELEVO_REQUIRE")
        .env("RELEVO_TEST_OF_SKIPS", "1")
        .env("RELEVO_SKIPPED", note)
        .envs(variables.iter().copied())
        .output()
        .expect("it runs")
}

#[test]
fn a_test_without_its_server_is_skipped_aloud_and_noted_or_fails_where_nothing_may_be_missing()
-> TestResult {
    let note = std::env::temp_dir().join(services::unique_name("relevo_skipped"));
    for _ in 0..2 {
        let skipped = run_without_its_server(&note, &[]);
        let said = String::from_utf8_lossy(&skipped.stderr);
        assert!(skipped.status.success() && said.contains("SKIPPED: PostgreSQL 7"), "{skipped:?}");
    }
    assert_eq!(std::fs::read_to_string(&note)?, "PostgreSQL 7\nPostgreSQL 7\n");
    for required in [("CI", "true"), ("RELEVO_REQUIRE", "1")] {
        let failed = run_without_its_server(&note, &[required]);
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(!failed.status.success(), "{required:?}: {failed:?}");
        assert!(said.contains("PostgreSQL 7 is not on this machine"), "{said}");
    }
    std::fs::remove_file(note)?;
    Ok(())
}

/// A table `t` with the numbers that arrived, reached through a proxy.
struct Proxied {
    proxy: Proxy,
    direct: String,
}

impl Proxied {
    fn start() -> Result<Option<Proxied>, ServiceError> {
        let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(None) };
        let direct = postgres.create_database()?;
        sql::execute(&direct, "CREATE TABLE t (n int)")?;
        Ok(Some(Proxied { proxy: Proxy::start(postgres.address())?, direct }))
    }

    async fn connect(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) =
            tokio_postgres::connect(&self.proxy.url(&self.direct), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    fn arrived(&self) -> Result<String, ServiceError> {
        sql::value(&self.direct, "SELECT coalesce(string_agg(n::text, ',' ORDER BY n), '') FROM t")
    }
}

#[tokio::test]
async fn a_cut_breaks_what_is_open_and_lets_new_connections_through() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    client.batch_execute("INSERT INTO t VALUES (1)").await?;
    test.proxy.cut();
    assert!(client.batch_execute("INSERT INTO t VALUES (2)").await.is_err());
    test.connect().await?.batch_execute("INSERT INTO t VALUES (3)").await?;
    assert_eq!(test.arrived()?, "1,3");
    assert_eq!(test.proxy.connections(), 2);
    Ok(())
}

#[tokio::test]
async fn a_proxy_that_refuses_lets_nobody_in_until_it_is_healed() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    test.proxy.refuse();
    assert!(test.connect().await.is_err());
    test.proxy.heal();
    assert!(test.connect().await.is_ok());
    Ok(())
}

#[tokio::test]
async fn a_half_open_connection_answers_nothing_and_stays_dead() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    test.proxy.half_open();
    let insert = client.batch_execute("INSERT INTO t VALUES (1)");
    assert!(tokio::time::timeout(Duration::from_millis(300), insert).await.is_err());
    test.proxy.heal();
    let again = client.batch_execute("INSERT INTO t VALUES (2)");
    assert!(tokio::time::timeout(Duration::from_millis(300), again).await.is_err());
    assert_eq!(test.arrived()?, "");
    test.connect().await?.batch_execute("INSERT INTO t VALUES (3)").await?;
    assert_eq!(test.arrived()?, "3");
    Ok(())
}

#[tokio::test]
async fn a_forgotten_connection_is_dead_though_it_idled_and_new_ones_live() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    test.proxy.forget();
    test.connect().await?.batch_execute("INSERT INTO t VALUES (1)").await?;
    let insert = client.batch_execute("INSERT INTO t VALUES (2)");
    assert!(tokio::time::timeout(Duration::from_millis(300), insert).await.is_err());
    assert_eq!(test.arrived()?, "1");
    Ok(())
}

#[tokio::test]
async fn a_lost_reply_to_a_commit_leaves_it_done_and_the_client_without_an_answer() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let mut client = test.connect().await?;
    test.proxy.lose_reply_to("COMMIT");
    let transaction = client.transaction().await?;
    transaction.batch_execute("INSERT INTO t VALUES (1)").await?;
    assert!(transaction.commit().await.is_err());
    test.proxy.until_lost(1).await;
    assert_eq!(test.arrived()?, "1");
    let mut other = test.connect().await?;
    let transaction = other.transaction().await?;
    transaction.batch_execute("INSERT INTO t VALUES (2)").await?;
    transaction.commit().await?;
    assert_eq!(test.arrived()?, "1,2", "only one reply is lost");
    Ok(())
}

#[tokio::test]
async fn a_reply_can_be_lost_after_a_number_of_others() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    test.proxy.lose_reply_after(2);
    client.batch_execute("INSERT INTO t VALUES (1)").await?;
    client.batch_execute("INSERT INTO t VALUES (2)").await?;
    assert!(client.batch_execute("INSERT INTO t VALUES (3)").await.is_err());
    assert_eq!(test.arrived()?, "1,2,3");
    assert_eq!(test.proxy.lost(), 1);
    Ok(())
}

#[tokio::test]
async fn while_replies_are_lost_the_server_works_on() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    test.proxy.lose_replies();
    let insert =
        tokio::spawn(async move { client.batch_execute("INSERT INTO t VALUES (1)").await });
    test.proxy.until_lost(1).await;
    assert_eq!(test.arrived()?, "1");
    assert!(!insert.is_finished());
    test.proxy.cut();
    assert!(insert.await?.is_err());
    Ok(())
}

#[tokio::test]
async fn a_delay_slows_both_ways() -> TestResult {
    let Some(test) = Proxied::start()? else { return Ok(()) };
    let client = test.connect().await?;
    test.proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    client.batch_execute("SELECT 1").await?;
    assert!(start.elapsed() >= Duration::from_millis(200));
    Ok(())
}

/// Waits for something that another process does.
#[track_caller]
fn until(happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(Instant::now() < deadline, "it did not happen within 30 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! An existing axum + sqlx service that learns to tell others: a ticket and its event commit together,
//! a mailer's effect happens once. `cargo run -p relevo-examples --bin tickets_axum_sqlx -- tickets.db`

use anyhow::Result;
use axum::{Json, Router, extract::State, routing::post};
use relevo::sqlite::{SqliteOutbox, SqliteStore, SqlxSqlite};
use relevo::{
    Answer, Direct, Effect, Event, Handler, NewEvent, Operate, PublishIn, Relay, Settled,
    Subscription,
};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

#[derive(Serialize, Deserialize)]
struct Ticket {
    id: String,
    title: String,
}

struct Mailer;
impl Handler<SqlxSqlite> for Mailer {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, SqlxSqlite>) -> Answer {
        let ticket: Ticket = event.json()?;
        let mail = sqlx::query("INSERT INTO mails VALUES (?, ?)");
        let mail = mail.bind(&ticket.id).bind(&ticket.title);
        mail.execute(&mut **effect.tx().await?).await?;
        println!("mail for {} written", ticket.id);
        Ok(Settled::Done)
    }
}

async fn create(
    State((pool, outbox)): State<(SqlitePool, SqliteOutbox)>,
    Json(ticket): Json<Ticket>,
) -> Result<String, String> {
    let work = async {
        let mut tx = pool.begin().await?;
        let insert = sqlx::query("INSERT INTO tickets VALUES (?, ?)");
        let insert = insert.bind(&ticket.id).bind(&ticket.title);
        insert.execute(&mut *tx).await?;
        let event = NewEvent::json("ticket.created", &ticket)?.key(&ticket.id);
        let id = outbox.publish(&mut tx, event).await?;
        tx.commit().await?;
        anyhow::Ok(id.to_string())
    };
    work.await.map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() -> Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "tickets.db".into());
    let pool = SqlitePool::connect(&format!("sqlite:{file}?mode=rwc")).await?;
    let tables = "CREATE TABLE IF NOT EXISTS tickets (id TEXT PRIMARY KEY, title TEXT);
                  CREATE TABLE IF NOT EXISTS mails (ticket TEXT, text TEXT)";
    sqlx::raw_sql(tables).execute(&pool).await?;

    let store = SqliteStore::open(&file)?;
    store.migrate().await?;
    let mailer = Direct::new(SqlxSqlite::new(pool.clone()), Mailer);
    let relay =
        Relay::on(store.clone()).subscribe(Subscription::new("mailer"), mailer).start().await?;

    let app = Router::new().route("/tickets", post(create)).with_state((pool, store.outbox()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    relay.stop().await?;
    println!("stopped; nothing is lost");
    Ok(())
}

//! Dead letters: found, replayed, edited as a copy, archived. Only a lane's owner puts one back; here it is asked to.

use super::PostgresStore;
use super::errors::error;
use super::horizon::prove_replay;
use super::session::{Args, Tx, args};
use bytes::Bytes;
use relevo_core::dead_letters::{
    DeadFilter, DeadLetter, DeadLetterId, DeadState, ReplayProgress, Unproven,
};
use relevo_core::limits::Limits;
use relevo_core::{ErrorClass, EventId, Headers, Kind, NewEvent, Result};
use std::collections::HashSet;
use tokio_postgres::Row;
use uuid::Uuid;

/// What [`DeadFilter`] says, as arguments $1 to $9 of [`MATCHES`].
struct Matching {
    ids: Option<Vec<i64>>,
    subscription: Option<String>,
    topic: Option<String>,
    key: Option<String>,
    class: Option<String>,
    state: String,
    text: Option<String>,
    event: Option<Uuid>,
    up_to: Option<i64>,
}

const MATCHES: &str = "($1::bigint[] IS NULL OR d.dead_letter = ANY($1)) AND ($2::text IS NULL OR d.subscription = $2)
    AND ($3::text IS NULL OR d.topic = $3) AND ($4::text IS NULL OR d.event_key = $4)
    AND ($5::text IS NULL OR d.class = $5) AND d.state = $6
    AND ($7::text IS NULL OR position($7 IN d.error) > 0) AND ($8::uuid IS NULL OR d.id = $8)
    AND ($9::bigint IS NULL OR d.dead_letter <= $9)";

impl Matching {
    fn new(filter: &DeadFilter, state: DeadState) -> Self {
        Self {
            ids: (!filter.ids.is_empty()).then(|| filter.ids.clone()),
            subscription: filter.subscription.clone(),
            topic: filter.topic.clone(),
            key: filter.key.clone(),
            class: filter.class.map(|class| class.as_str().to_owned()),
            state: state.as_str().to_owned(),
            text: filter.text.clone(),
            event: filter.event.map(|event| event.0),
            up_to: filter.up_to,
        }
    }

    async fn run(&self, tx: &Tx<'_>, sql: &str, more: &Args<'_>) -> Result<Vec<Row>> {
        let Self { ids, subscription, topic, key, class, state, text, event, up_to } = self;
        let own = args![*ids, *subscription, *topic, *key, *class, *state, *text, *event, *up_to];
        tx.query(sql, &[own as &Args<'_>, more].concat()).await
    }
}

impl PostgresStore {
    pub(crate) async fn find_dead(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let session = self.session().await?;
        let tx = session.begin().await?;
        let sql = format!(
            "SELECT d.dead_letter, d.subscription, d.lane, d.id, d.topic, d.event_key, d.headers::text, d.payload, d.created_at,
                    d.class, d.error, d.attempts, d.first_failed_at, d.died_at, d.state, d.copy_of
               FROM relevo.dead_letter d WHERE {MATCHES} AND d.dead_letter < $10 ORDER BY d.dead_letter DESC LIMIT $11"
        );
        let matching = Matching::new(filter, filter.state.unwrap_or(DeadState::Dead));
        let rows = matching.run(&tx, &sql, args![before.unwrap_or(i64::MAX), max as i64]).await?;
        tx.commit().await?;
        rows.iter().map(dead_letter).collect()
    }

    pub(crate) async fn ask_replay(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress> {
        if rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            return Err(error(Kind::InvalidArgument, "the rate must be above 0 a second"));
        }
        let session = self.session().await?;
        let tx = session.begin().await?;
        let keeps = keep_subscriptions(&tx, filter).await?;
        let chosen = choose(&tx, filter).await?;
        if let Some(refusal) = refusal(filter, keeps, &chosen) {
            tx.rollback().await?;
            return Err(refusal);
        }
        if let Err(refusal) = prove_replay(&tx, &chosen, unproven).await {
            tx.rollback().await?;
            return Err(refusal);
        }
        let row = tx
            .query_one(
                "INSERT INTO relevo.replay (rate) VALUES ($1) RETURNING operation",
                args![rate],
            )
            .await?;
        let operation: i64 = row.get(0);
        request_replays(&tx, &chosen, operation, rate).await?;
        tx.commit().await?;
        self.progress(operation).await
    }

    pub(crate) async fn progress(&self, operation: i64) -> Result<ReplayProgress> {
        let session = self.session().await?;
        let sql = "SELECT count(q.request), count(*) FILTER (WHERE q.state = 'waiting'),
                          count(*) FILTER (WHERE q.state = 'done'), count(*) FILTER (WHERE q.state = 'cancelled')
                     FROM relevo.replay r LEFT JOIN relevo.request q ON q.operation = r.operation AND q.kind = 'replay'
                    WHERE r.operation = $1 GROUP BY r.operation";
        let row = session.query_opt(sql, args![operation]).await?;
        let row = row.ok_or_else(|| {
            error(Kind::InvalidArgument, format!("there is no replay {operation}"))
        })?;
        Ok(ReplayProgress::new(operation, row.get(0), row.get(1), row.get(2), row.get(3)))
    }

    pub(crate) async fn cancel(&self, operation: i64) -> Result<ReplayProgress> {
        let session = self.session().await?;
        // A request that its owner carries out just now is waited for, and is then no longer waiting.
        let sql = "WITH taken AS (
                UPDATE relevo.request SET state = 'cancelled', settled_at = clock_timestamp()
                 WHERE operation = $1 AND state = 'waiting' RETURNING dead_letter)
            UPDATE relevo.dead_letter d SET state = 'dead' FROM taken WHERE d.dead_letter = taken.dead_letter AND d.state = 'requested'";
        session.execute(sql, args![operation]).await?;
        drop(session);
        self.progress(operation).await
    }

    pub(crate) async fn ask_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId> {
        let mut edited = NewEvent::bytes("edited", payload);
        edited.headers = headers;
        Limits::default().check(&edited)?;
        let session = self.session().await?;
        let tx = session.begin().await?;
        let filter = only(id);
        keep_subscriptions(&tx, &filter).await?;
        if choose(&tx, &filter).await? != [id] {
            tx.rollback().await?;
            return Err(refused(id));
        }
        let copy = insert_copy(&tx, id, &edited).await?;
        let row = tx
            .query_one("INSERT INTO relevo.replay DEFAULT VALUES RETURNING operation", args![])
            .await?;
        request_replays(&tx, &[copy], row.get(0), None).await?;
        tx.commit().await?;
        Ok(edited.id)
    }

    pub(crate) async fn set_aside(&self, filter: &DeadFilter) -> Result<u64> {
        let state = filter.state.unwrap_or(DeadState::Dead);
        if state == DeadState::Requested {
            return Err(error(
                Kind::InvalidArgument,
                "cancel the replay before you set its dead letters aside",
            ));
        }
        let session = self.session().await?;
        let tx = session.begin().await?;
        // A key that is held for one of them is let go on, by its lane's owner.
        let sql = format!(
            "WITH aside AS (UPDATE relevo.dead_letter d SET state = 'archived' WHERE {MATCHES}
                            RETURNING d.subscription, d.lane, d.key),
             asked AS (
                INSERT INTO relevo.request (subscription, lane, key, kind, due)
                SELECT DISTINCT a.subscription, a.lane, a.key, 'release', clock_timestamp() FROM aside a
                  JOIN relevo.parked_key k ON k.subscription = a.subscription AND k.lane = a.lane AND k.key = a.key AND k.due IS NULL
                 WHERE NOT EXISTS (SELECT FROM relevo.request q WHERE q.subscription = a.subscription AND q.lane = a.lane
                                   AND q.key = a.key AND q.kind = 'release' AND q.state = 'waiting'))
             SELECT count(*) FROM aside"
        );
        let rows = Matching::new(filter, state).run(&tx, &sql, args![]).await?;
        tx.commit().await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64)
    }
}

fn only(id: DeadLetterId) -> DeadFilter {
    let mut filter = DeadFilter::default();
    filter.ids = vec![id];
    filter
}

fn refused(id: DeadLetterId) -> relevo_core::Error {
    let message = format!(
        "dead letter {id} is not there, is not dead any more, or its subscription was removed"
    );
    error(Kind::ReplayRefused, message)
}

/// Why nothing of this can be replayed.
fn refusal(
    filter: &DeadFilter,
    has_subscription: bool,
    chosen: &[DeadLetterId],
) -> Option<relevo_core::Error> {
    if let (Some(name), false) = (&filter.subscription, has_subscription) {
        let message =
            format!("subscription {name:?} was removed: nobody would work on its dead letters");
        return Some(error(Kind::ReplayRefused, message));
    }
    let chosen: HashSet<&DeadLetterId> = chosen.iter().collect();
    filter.ids.iter().find(|id| !chosen.contains(id)).map(|id| refused(*id))
}

/// Keeps the subscriptions that may be meant from being removed until this transaction ends; false if there are none.
async fn keep_subscriptions(tx: &Tx<'_>, filter: &DeadFilter) -> Result<bool> {
    let sql = "SELECT name FROM relevo.subscription WHERE $1::text IS NULL OR name = $1 ORDER BY name FOR KEY SHARE";
    Ok(!tx.query(sql, args![filter.subscription]).await?.is_empty())
}

/// Dead letters that can be replayed, locked, in delivery order.
async fn choose(tx: &Tx<'_>, filter: &DeadFilter) -> Result<Vec<DeadLetterId>> {
    let sql = format!(
        "SELECT d.dead_letter FROM relevo.dead_letter d
          WHERE {MATCHES} AND EXISTS (SELECT FROM relevo.subscription s WHERE s.name = d.subscription)
          ORDER BY d.to_number, d.seq, d.dead_letter FOR UPDATE OF d"
    );
    let rows = Matching::new(filter, DeadState::Dead).run(tx, &sql, args![]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Asks for the replay of these, in this order, so many a second.
async fn request_replays(
    tx: &Tx<'_>,
    chosen: &[DeadLetterId],
    operation: i64,
    rate: Option<f64>,
) -> Result<()> {
    let ids = chosen.to_vec();
    let sql =
        "INSERT INTO relevo.request (subscription, lane, key, kind, dead_letter, operation, due)
        SELECT d.subscription, d.lane, d.key, 'replay', d.dead_letter, $2,
               clock_timestamp() + make_interval(secs => coalesce((c.place - 1) / $3, 0))
          FROM unnest($1::bigint[]) WITH ORDINALITY AS c (dead_letter, place)
          JOIN relevo.dead_letter d ON d.dead_letter = c.dead_letter ORDER BY c.place";
    tx.execute(sql, args![ids, operation, rate]).await?;
    tx.execute(
        "UPDATE relevo.dead_letter SET state = 'requested' WHERE dead_letter = ANY($1)",
        args![ids],
    )
    .await?;
    Ok(())
}

/// An edited copy at the original's place, under an id of its own; the original is set aside.
async fn insert_copy(tx: &Tx<'_>, id: DeadLetterId, edited: &NewEvent) -> Result<DeadLetterId> {
    let sql = "INSERT INTO relevo.dead_letter
          (subscription, lane, key, to_number, to_nonce, seq, id, topic, event_key, headers, payload, created_at,
           class, error, attempts, first_failed_at, died_at, copy_of)
        SELECT subscription, lane, key, to_number, to_nonce, seq, $2, topic, event_key, $3::text::jsonb, $4, created_at,
               class, error, attempts, first_failed_at, died_at, dead_letter
          FROM relevo.dead_letter WHERE dead_letter = $1 RETURNING dead_letter";
    let row = tx
        .query_one(sql, args![id, edited.id.0, edited.headers.to_json(), &edited.payload[..]])
        .await?;
    tx.execute(
        "UPDATE relevo.dead_letter SET state = 'archived' WHERE dead_letter = $1",
        args![id],
    )
    .await?;
    Ok(row.get(0))
}

fn dead_letter(row: &Row) -> Result<DeadLetter> {
    let event = super::log::event_at(row, 3);
    let (class, state): (&str, &str) = (row.get(9), row.get(14));
    let unreadable = |what: &str| {
        error(
            Kind::StoreFailed,
            format!("dead letter {} has the {what} of another version", row.get::<_, i64>(0)),
        )
    };
    let failure = (
        ErrorClass::parse(class).ok_or_else(|| unreadable("class"))?,
        row.get::<_, String>(10),
        row.get::<_, i32>(11) as u32,
    );
    let state = DeadState::parse(state).ok_or_else(|| unreadable("state"))?;
    let lane = row.get::<_, i16>(2) as u16;
    Ok(DeadLetter::stored(
        row.get(0),
        row.get(1),
        lane,
        event,
        failure,
        row.get(12),
        row.get(13),
        state,
        row.get(15),
    ))
}

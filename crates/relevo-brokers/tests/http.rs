//! The HTTP publisher against a real server on a local port.
#![cfg(feature = "http")]
#![allow(clippy::unwrap_used)]

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use relevo_brokers::http::{HttpConfig, HttpPublisher, Secret};
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::error::ErrorClass;
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::eventually;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

#[derive(Default)]
struct Received {
    requests: Mutex<Vec<(HeaderMap, Bytes)>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

/// Answers by the path: `/503` with that status, `/slow` never, `/busy` after a moment.
async fn endpoint(
    State(received): State<Arc<Received>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    received.requests.lock().unwrap().push((headers, body));
    match uri.path() {
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::OK.into_response()
        }
        "/busy" => {
            let now = received.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            received.most_under_way.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            received.under_way.fetch_sub(1, Ordering::SeqCst);
            StatusCode::ACCEPTED.into_response()
        }
        "/huge" => (StatusCode::OK, "x".repeat(4 << 20)).into_response(),
        "/moved" => (StatusCode::TEMPORARY_REDIRECT, [("location", "/200")]).into_response(),
        path => {
            let status = path.trim_start_matches('/').parse().unwrap_or(200);
            (StatusCode::from_u16(status).unwrap(), [("retry-after", "3")], "because I say so")
                .into_response()
        }
    }
}

async fn serve() -> (SocketAddr, Arc<Received>) {
    let received = Arc::new(Received::default());
    let app = Router::new().fallback(endpoint).with_state(received.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, received)
}

fn event(n: usize) -> Event {
    let new = NewEvent::json("ticket.created", &serde_json::json!({ "n": n }))
        .unwrap()
        .key(format!("t-{n}"));
    Event::stored(new, chrono::Utc::now())
}

async fn one(config: HttpConfig) -> Confirm {
    HttpPublisher::new(config).publish(&[&event(1)]).await.remove(0)
}

async fn one_to(address: SocketAddr, path: &str) -> Confirm {
    one(HttpConfig::to(&format!("http://{address}{path}")).unwrap()).await
}

#[tokio::test]
async fn an_event_arrives_whole_and_signed() {
    let (address, received) = serve().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let config =
        HttpConfig::to(&format!("http://me:pw@{address}/hook")).unwrap().secret(secret).unwrap();
    let event = event(7);
    let confirms = HttpPublisher::new(config.source("shop")).publish(&[&event]).await;
    assert_eq!(confirms, [Confirm::Stored]);
    let (headers, body) = received.requests.lock().unwrap().remove(0);
    let get = |name: &str| {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    assert_eq!(body, event.payload);
    assert_eq!((get("ce-id"), get("ce-source")), (event.id.to_string(), "shop".to_owned()));
    assert_eq!(get("authorization"), "Basic bWU6cHc=");
    assert_eq!(get("webhook-id"), event.id.to_string());
    let expected = Secret::parse(secret).unwrap().sign(
        &get("webhook-id"),
        get("webhook-timestamp").parse().unwrap(),
        &body,
    );
    assert_eq!(get("webhook-signature"), expected);
}

#[tokio::test]
async fn a_refusal_says_why_and_when_to_come_back() {
    let (address, _) = serve().await;
    let error = "the endpoint answered 429 Too Many Requests: because I say so".to_owned();
    let after = Some(Duration::from_secs(3));
    assert_eq!(
        one_to(address, "/429").await,
        Confirm::Refused { class: ErrorClass::Transient, error, after }
    );
    for (status, expected) in
        [(404, ErrorClass::Transient), (410, ErrorClass::Permanent), (422, ErrorClass::Poison)]
    {
        let confirm = one_to(address, &format!("/{status}")).await;
        assert!(
            matches!(confirm, Confirm::Refused { class, .. } if class == expected),
            "{status}: {confirm:?}"
        );
    }
}

#[tokio::test]
async fn a_gateway_without_its_service_means_the_destination_is_down() {
    let (address, _) = serve().await;
    assert!(matches!(one_to(address, "/503").await, Confirm::Down { .. }));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (address, received) = serve().await;
    let confirm = one_to(address, "/moved").await;
    assert!(
        matches!(confirm, Confirm::Refused { class: ErrorClass::Permanent, .. }),
        "{confirm:?}"
    );
    assert_eq!(received.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn silence_after_sending_is_unknown() {
    let (address, _) = serve().await;
    let config = HttpConfig::to(&format!("http://{address}/slow"))
        .unwrap()
        .timeout(Duration::from_millis(200));
    let confirm = one(config).await;
    assert!(matches!(confirm, Confirm::Unknown { .. }), "{confirm:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_sending_is_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        socket.readable().await.unwrap();
        drop(socket);
    });
    let confirm = one_to(address, "/").await;
    assert!(matches!(confirm, Confirm::Unknown { .. }), "{confirm:?}");
}

#[tokio::test]
async fn nobody_there_means_down_for_the_whole_wave() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let events: Vec<Event> = (0..40).map(event).collect();
    let publisher = HttpPublisher::new(HttpConfig::to(&format!("http://{address}/")).unwrap());
    let confirms = publisher.publish(&events.iter().collect::<Vec<_>>()).await;
    assert_eq!(confirms.len(), 40);
    assert!(confirms.iter().all(|confirm| matches!(confirm, Confirm::Down { .. })), "{confirms:?}");
    assert!(format!("{:?}", confirms[0]).contains("refused"), "{:?}", confirms[0]);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_means_down() {
    let confirm = one(HttpConfig::to("http://nowhere.invalid/").unwrap()).await;
    assert!(matches!(confirm, Confirm::Down { .. }), "{confirm:?}");
}

#[tokio::test]
async fn an_endless_body_costs_nothing() {
    let (address, _) = serve().await;
    let answered = one_to(address, "/huge");
    // It never ends: whoever read it would still read.
    let answered = tokio::time::timeout(Duration::from_secs(60), answered).await;
    assert_eq!(answered.unwrap(), Confirm::Stored);
}

#[tokio::test]
async fn a_wave_travels_at_the_same_time_within_its_limit() {
    let (address, received) = serve().await;
    let events: Vec<Event> = (0..40).map(event).collect();
    let config = HttpConfig::to(&format!("http://{address}/busy")).unwrap().max_in_flight(8);
    let confirms = HttpPublisher::new(config).publish(&events.iter().collect::<Vec<_>>()).await;
    assert_eq!(confirms, vec![Confirm::Stored; 40]);
    let most = received.most_under_way.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most}");
}

/// Waits until the endpoint got so many requests.
async fn arrived(received: &Received, requests: usize) {
    eventually("they arrive", async || {
        (received.requests.lock().unwrap().len() == requests).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_next_wave_is_what_can_go_out_at_once_and_one_event_where_nothing_can() {
    let (address, received) = serve().await;
    let config = HttpConfig::to(&format!("http://{address}/slow")).unwrap().max_in_flight(4);
    let publisher = HttpPublisher::new(config);
    assert_eq!(publisher.publish_limit(), None, "who waits for a turn is not given up for that");
    let events: Vec<Event> = (0..5).map(event).collect();
    let events: Vec<&Event> = events.iter().collect();
    let next_beside = async |wave: &[&Event], requests: usize| {
        let next = async {
            arrived(&received, requests).await;
            publisher.largest_wave()
        };
        tokio::select! {
            confirms = publisher.publish(wave) => panic!("it is slow: {confirms:?}"),
            next = next => next,
        }
    };
    assert_eq!(publisher.largest_wave(), 4);
    assert_eq!(next_beside(&events[..1], 1).await, 3);
    assert_eq!(publisher.largest_wave(), 4, "what was given up takes nobody's turn");
    assert_eq!(next_beside(&events[..], 5).await, 1);
}

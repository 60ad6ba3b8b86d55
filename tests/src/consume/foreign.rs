//! Messages of other programs.

use super::{Ref, broker, end, settled};
use crate::script::Script;
use crate::world::{Terms, effects, quick};
use relevo_brokers::memory::{MemoryBroker, Message};
use relevo_core::broker::{Confirm, Foreign, Take};
use relevo_core::inbox::Consuming;

async fn consume(world: &Ref, broker: &MemoryBroker, foreign: Foreign) -> Consuming {
    let terms = Terms { foreign, ..quick().into() };
    let subscriber = Box::new(broker.subscriber("q"));
    let consuming = world.consume("q", subscriber, terms, &Script::done()).await;
    consuming.unwrap_or_else(|| panic!("this world cannot consume"))
}

fn put(broker: &MemoryBroker, message: Message) {
    assert_eq!(broker.put(message), Confirm::Stored);
}

/// Known by what the mapping names, though no header says anything.
pub async fn a_foreign_message_takes_effect_once_through_its_mapping(world: &Ref) {
    let json = |pointer: &str| vec![Take::Json(pointer.to_owned())];
    let mut foreign = Foreign::default();
    (foreign.id, foreign.key) = (json("/order/id"), json("/customer"));
    foreign.source = vec![Take::Fixed("legacy".into())];
    let broker = broker(&["q"]);
    let order = |id: u32, sent: u32| {
        let text = format!(r#"{{"order":{{"id":{id}}},"customer":"c-7","sent":{sent}}}"#);
        Message::new("order.placed", text)
    };
    put(&broker, order(17, 1));
    let consuming = consume(world, &broker, foreign).await;
    effects(&**world, 1).await;
    put(&broker, order(17, 2));
    put(&broker, order(18, 3));
    let rows = effects(&**world, 2).await;
    assert!(rows.iter().all(|row| row.key == "c-7"), "{rows:?}");
    let orders: Vec<bool> = rows.iter().map(|row| row.payload.contains("17")).collect();
    assert_eq!(orders, [true, false], "the copy had no effect");
    settled(&broker, "q").await;
    end(consuming).await;
}

/// Ids are their source's own: two systems may use the same.
pub async fn the_same_id_of_another_source_is_another_event(world: &Ref) {
    let broker = broker(&["q"]);
    let message = |source: &str, id: &str| {
        Message::new("thing.happened", source.to_owned())
            .header("ce_specversion", "1.0")
            .header("ce_type", "thing.happened")
            .header("ce_source", source)
            .header("ce_id", id)
    };
    for id in ["17", "019a8b2e-7c1f-7d4a-9a55-0c6c1b1f2e3d"] {
        for source in ["shop", "till", "shop", "till"] {
            put(&broker, message(source, id));
        }
    }
    put(&broker, message("last", "1"));
    let consuming = consume(world, &broker, Foreign::default()).await;
    let rows = effects(&**world, 5).await;
    let sources: Vec<&str> = rows.iter().map(|row| row.payload.as_str()).collect();
    assert_eq!(sources, ["shop", "till", "shop", "till", "last"]);
    settled(&broker, "q").await;
    end(consuming).await;
}

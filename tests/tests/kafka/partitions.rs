//! Keys go where other programs look for them.

use crate::{config, consumer, event, open, partition_of, python, run, shared, store, take, topic};
use relevo_core::event::Event;
use serde_json::json;
use std::collections::BTreeMap;

/// Kafka's hash of a key, as its Java clients compute it.
fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut blocks = data.chunks_exact(4);
    for block in &mut blocks {
        let mut k = u32::from_le_bytes(block.try_into().unwrap()).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = blocks.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    (hash ^ (hash >> 15)) as i32
}

/// Where Java puts a key.
pub(crate) fn partition_of_key(key: &str, partitions: i32) -> i32 {
    (murmur2(key.as_bytes()) & 0x7fff_ffff) % partitions
}

#[test]
fn the_hash_is_the_one_of_javas_own_tests() {
    for (text, hash) in [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ] {
        assert_eq!(murmur2(text.as_bytes()), hash, "{text}");
    }
}

#[test]
fn a_key_goes_to_the_partition_where_java_and_python_look_for_it() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 7).await;
        let keys = ["21", "foobar", "order-1", "order-2", "Straße 7", "😀", "x", "abc"];
        let keys = &keys[..];
        let events: Vec<Event> = keys.iter().map(|key| event(&topic, key, b"1")).collect();
        store(config(&server), &events).await;
        let mut receiver = open(config(&server), consumer(&topic)).await;
        let came = take(&mut receiver, keys.len()).await;
        let found: BTreeMap<String, i32> =
            came.iter().map(|m| (m.key.clone().unwrap(), partition_of(m))).collect();
        for key in keys {
            assert_eq!(found.get(*key), Some(&partition_of_key(key, 7)), "{key}");
        }
        let bootstrap = server.bootstrap();
        let args = [&["partitions", &bootstrap, &topic], keys].concat();
        let Some(said) = python(&args) else { return };
        for line in said {
            let key = line[0].as_str().unwrap();
            assert_eq!(found.get(key).map(|n| json!(n)).as_ref(), Some(&line[1]), "{key}");
        }
    });
}

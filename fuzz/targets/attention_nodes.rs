//! The nodes that attention is asked for: any are refused, or each has a path of slots that are its
//! ancestors'.
//!
//! The input is the span, rows and slots, then the lengths of three sequences, then two bytes a node.

#![no_main]

use coordgen_fuzz::within_memory;
use coordgen_rs::kernels::nodes::{Nodes, TILE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((head, nodes)) = data.split_at_checked(12) else { return };
    let number = |at: usize| i32::from(i16::from_le_bytes([head[2 * at], head[2 * at + 1]]));
    let lengths = [3, 4, 5].map(number);
    let (parents, sequences): (Vec<i32>, Vec<i32>) = nodes
        .chunks_exact(2)
        .enumerate()
        .map(|(node, bytes)| {
            // Most parents are near: so many nodes behind, of which 0 is the node itself.
            let parent = match bytes[0] {
                255 => -1,
                behind => node as i32 - i32::from(behind),
            };
            (parent, i32::from(bytes[1] % 8) - i32::from(bytes[1] / 128))
        })
        .unzip();
    let span = [i32::from(head[0] as i8), number(1)];
    let (rows, slots) = (number(2).unsigned_abs() as usize, 64 * usize::from(head[1]));
    within_memory(data.len(), || {
        let made = Nodes::new(&parents, &sequences, &lengths, span, rows, slots);
        if let Ok(made) = made {
            check(&made, &parents, span[0] as usize, slots);
        }
    });
});

/// Each row has its path, and slots that exist.
fn check(nodes: &Nodes, parents: &[i32], first: usize, slots: usize) {
    for row in 0..nodes.num_rows() {
        let node = nodes.of_row(row);
        let end = node.position as usize + 1;
        let start = (end - 1) / TILE * TILE;
        let mut found = [u32::MAX; TILE];
        nodes.slots(node, start..end, &mut found);
        let found = &found[..end - start];
        assert!(found.iter().all(|slot| (*slot as usize) < slots));
        assert_eq!(found.last(), Some(&node.slot));
        if let Some(parent) = usize::try_from(parents[first + row]).ok().filter(|it| *it >= first) {
            let parent = nodes.of_row(parent - first);
            assert_eq!((parent.sequence, parent.position + 1), (node.sequence, node.position));
            assert!(found.len() < 2 || found[found.len() - 2] == parent.slot);
        }
    }
}

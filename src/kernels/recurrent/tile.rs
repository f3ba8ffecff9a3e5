//! The innermost loop: a pass over a tile, sixteen columns of a state.
//!
//! In: a tile, an update, keys and queries of some rows. Out: the tile with the update, and the sums of
//! its rows times keys and times queries. A state is a matrix of keys by columns; all that is done to a
//! column depends on that column alone.

use super::heads::Rule;
use super::walk::MOST_ROWS;
use crate::kernels::lanes::{Lanes, WIDTH};

/// A matrix to be added to a state that is first multiplied: key times value, of rank one.
#[derive(Clone, Copy)]
pub struct Update {
    /// `(keys,)`.
    pub key: *const f32,
    /// `(WIDTH,)`, those of the tile.
    pub value: *const f32,
    pub decay: f32,
}

/// What a row asks of a tile.
#[derive(Clone, Copy)]
pub struct RowQuery {
    /// `(keys,)`.
    pub key: *const f32,
    /// `(keys,)`.
    pub query: *const f32,
}

/// What a tile answers: for its columns the sum over keys of a row's key times the state's number, and
/// of its query.
pub type RowOutput<L> = [<L as Lanes>::Floats; 2];

/// A tile `(keys, WIDTH)`, and where it goes.
#[derive(Clone, Copy)]
pub struct Tile {
    pub from: *const f32,
    /// Where the tile goes with the update, if anywhere: elsewhere or the same.
    pub to: Option<*mut f32>,
    pub keys: usize,
    /// What will be read next.
    pub next: Option<*const f32>,
}

/// Answers some rows' questions to a tile with an update. Only a delta rule asks with keys.
///
/// # Safety
///
/// As [`Lanes`]; all has its sizes.
#[inline(always)]
pub unsafe fn pass<L: Lanes, R: Rule>(
    tile: Tile,
    update: Option<Update>,
    row_queries: &[RowQuery],
    outputs: &mut [RowOutput<L>; MOST_ROWS],
) {
    unsafe {
        match (update, row_queries) {
            (None, []) => {}
            (None, [one]) => {
                let answered = read::<L, R, 1>(tile, &[*one]);
                outputs[..1].copy_from_slice(&answered);
            }
            (None, [one, other]) => {
                let answered = read::<L, R, 2>(tile, &[*one, *other]);
                outputs.copy_from_slice(&answered);
            }
            (Some(update), []) => {
                change::<L, R, 0>(tile, update, &[]);
            }
            (Some(update), [one]) => {
                let answered = change::<L, R, 1>(tile, update, &[*one]);
                outputs[..1].copy_from_slice(&answered);
            }
            (Some(update), [one, other]) => {
                let answered = change::<L, R, 2>(tile, update, &[*one, *other]);
                outputs.copy_from_slice(&answered);
            }
            _ => unreachable!("a pass reads for two rows at most"),
        }
    }
}

#[inline(always)]
unsafe fn read<L: Lanes, R: Rule, const N: usize>(
    tile: Tile,
    row_queries: &[RowQuery; N],
) -> [RowOutput<L>; N] {
    unsafe {
        let mut sums = [[L::splat(0.0); 2]; N];
        for key in 0..tile.keys {
            prefetch_next::<L>(tile, key);
            let x = L::load(tile.from.add(key * WIDTH));
            add::<L, R, N>(&mut sums, row_queries, key, x);
        }
        sums
    }
}

#[inline(always)]
unsafe fn change<L: Lanes, R: Rule, const N: usize>(
    tile: Tile,
    update: Update,
    row_queries: &[RowQuery; N],
) -> [RowOutput<L>; N] {
    unsafe {
        let (decay, value) = (L::splat(update.decay), L::load(update.value));
        let mut sums = [[L::splat(0.0); 2]; N];
        for key in 0..tile.keys {
            prefetch_next::<L>(tile, key);
            let x = L::multiply(L::load(tile.from.add(key * WIDTH)), decay);
            let x = L::fused(L::splat(*update.key.add(key)), value, x);
            if let Some(to) = tile.to {
                L::store(to.add(key * WIDTH), x);
            }
            add::<L, R, N>(&mut sums, row_queries, key, x);
        }
        sums
    }
}

#[inline(always)]
unsafe fn prefetch_next<L: Lanes>(tile: Tile, key: usize) {
    if let Some(next) = tile.next {
        // SAFETY: any address will do.
        unsafe { L::prefetch_far(next.wrapping_add(key * WIDTH).cast()) };
    }
}

#[inline(always)]
// An iterator over sums would keep them in memory.
#[allow(clippy::needless_range_loop)]
unsafe fn add<L: Lanes, R: Rule, const N: usize>(
    sums: &mut [RowOutput<L>; N],
    row_queries: &[RowQuery; N],
    key: usize,
    x: L::Floats,
) {
    unsafe {
        for row in 0..N {
            if R::IS_DELTA {
                let factor = L::splat(*row_queries[row].key.add(key));
                sums[row][0] = L::fused(factor, x, sums[row][0]);
            }
            let factor = L::splat(*row_queries[row].query.add(key));
            sums[row][1] = L::fused(factor, x, sums[row][1]);
        }
    }
}

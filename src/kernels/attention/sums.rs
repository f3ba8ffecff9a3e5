//! The innermost loop, of scores and of values alike: sums of vectors times numbers, for some rows.
//!
//! In: for each of up to six rows a factor for each vector. Out: for each row the sum of the vectors
//! times its factors, in their order, with a multiply and an add fused: so a lane's bits do not depend
//! on how many rows or vectors are summed together.

use std::ops::Range;

use crate::kernels::lanes::{Lanes, WIDTH};

/// Sums of `V` times sixteen lanes, for `R` rows.
pub type Sums<L, const R: usize, const V: usize> = [[<L as Lanes>::Floats; V]; R];

/// Where the vectors are.
pub trait Vectors: Copy {
    /// The first number of vector `index`.
    unsafe fn at(self, index: usize) -> *const f32;
}

/// Adds the vectors of a range, times each row's factors, to `sums`. With each it asks for half as
/// many numbers from `next` on, if there is anything to ask for.
///
/// # Safety
///
/// As [`Lanes`]; there are such vectors, of `V` times sixteen numbers, and factors of each row.
#[inline(always)]
// An iterator over sums would keep them in memory.
#[allow(clippy::needless_range_loop)]
pub unsafe fn add<L: Lanes, S: Vectors, const R: usize, const V: usize>(
    mut sums: Sums<L, R, V>,
    factors: &[*const f32; R],
    vectors: S,
    range: Range<usize>,
    next: Option<*const f32>,
) -> Sums<L, R, V> {
    unsafe {
        for index in range {
            let at = vectors.at(index);
            if let Some(next) = next {
                for vector in 0..V.div_ceil(2) {
                    let ahead = index * V * WIDTH / 2 + vector * WIDTH;
                    L::prefetch_far(next.wrapping_add(ahead).cast());
                }
            }
            let mut loaded = [L::splat(0.0); V];
            for vector in 0..V {
                loaded[vector] = L::load(at.add(vector * WIDTH));
            }
            for row in 0..R {
                let factor = L::splat(*factors[row].add(index));
                for vector in 0..V {
                    sums[row][vector] = L::fused(factor, loaded[vector], sums[row][vector]);
                }
            }
        }
        sums
    }
}

/// Something to do with rows and vectors whose numbers are known when it is compiled.
pub trait Work {
    unsafe fn run<L: Lanes, const R: usize, const V: usize>(&mut self);
}

/// Does the work with `rows`, of which there are up to [`Lanes::FLOAT_ROWS`], and `vectors`, up to
/// [`Lanes::VECTORS`].
#[inline(always)]
pub unsafe fn by_size<L: Lanes, W: Work>(work: &mut W, rows: usize, vectors: usize) {
    unsafe {
        match rows {
            1 => by_vectors::<L, W, 1>(work, vectors),
            2 if L::FLOAT_ROWS >= 2 => by_vectors::<L, W, 2>(work, vectors),
            3 if L::FLOAT_ROWS >= 3 => by_vectors::<L, W, 3>(work, vectors),
            4 if L::FLOAT_ROWS >= 4 => by_vectors::<L, W, 4>(work, vectors),
            5 if L::FLOAT_ROWS >= 5 => by_vectors::<L, W, 5>(work, vectors),
            6 if L::FLOAT_ROWS >= 6 => by_vectors::<L, W, 6>(work, vectors),
            _ => unreachable!("there are as many as registers hold"),
        }
    }
}

#[inline(always)]
unsafe fn by_vectors<L: Lanes, W: Work, const R: usize>(work: &mut W, vectors: usize) {
    unsafe {
        match vectors {
            1 => work.run::<L, R, 1>(),
            2 if L::VECTORS >= 2 => work.run::<L, R, 2>(),
            3 if L::VECTORS >= 3 => work.run::<L, R, 3>(),
            4 if L::VECTORS >= 4 => work.run::<L, R, 4>(),
            _ => unreachable!("there are as many as registers hold"),
        }
    }
}

//! What this machine can do at most in a second: bytes that it reads, products that it adds up.
//!
//! `cargo bench --bench peaks -- 1 2` prints a line of JSON for 1 thread and one for 2:
//!
//! - `read_gb_s`: reading an eighth of a buffer of 1 GiB, each thread a part of it. The next round
//!   takes the next eighth, so that no cache holds it.
//! - `integers`, `integers_gmac_s`: the instruction by which the kernels multiply bytes here, and its
//!   products; `null` where they are plain Rust.
//! - `fma_gmac_s`: products of float32, multiplied and added in one instruction; `null` likewise.
//!
//! Products are of registers alone, in more chains than an instruction takes cycles. It is the best
//! of many short rounds: what others take of the machine is not the machine's limit. Run as a test,
//! it does a little of all.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Barrier;
use std::thread::scope;
use std::time::Instant;

use coordgen_rs::kernels::Processor;

/// Independent sums, which with two factors fit into sixteen registers.
const CHAINS: usize = 12;
/// Sums of a buffer's numbers, so that none waits for the one before.
const LANES: usize = 32;
/// Of the buffer, of which a round reads one.
const PARTS: usize = 8;

/// How much is done in a round, and how many rounds there are.
struct Size {
    words: usize,
    read_rounds: usize,
    turns: usize,
    turn_rounds: usize,
}

/// Turns of [`CHAINS`] instructions each.
type Chains = unsafe fn(usize);

/// An instruction, the products of one, and what runs it.
struct Products {
    name: &'static str,
    macs: usize,
    run: Chains,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let numbers: Vec<usize> =
        arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let size = if is_bench {
        Size { words: 1 << 27, read_rounds: 80, turns: 1_000_000, turn_rounds: 200 }
    } else {
        Size { words: 1 << 12, read_rounds: 2, turns: 100, turn_rounds: 2 }
    };
    // Written, so that each page is its own.
    let buffer: Vec<u64> = (0..size.words as u64).collect();
    for threads in if numbers.is_empty() { vec![1] } else { numbers } {
        assert!(threads > 0, "there is no work without threads");
        println!("{}", line(threads, &buffer, &size));
    }
}

fn line(threads: usize, buffer: &[u64], size: &Size) -> String {
    let share = buffer.len() / PARTS / threads;
    let seconds = best_of(size.read_rounds, threads, |round, thread| {
        let part = &buffer[round % PARTS * (buffer.len() / PARTS)..];
        black_box(read(&part[thread * share..][..share]));
    });
    let read_gb_s = 1e-9 * (8 * share * threads) as f64 / seconds;
    let (integers, floats) = products();
    let rate = |products: &Option<Products>| match products {
        None => "null".to_owned(),
        Some(products) => {
            // SAFETY: `products` gives only what this processor can run.
            let run = |_, _| unsafe { (products.run)(black_box(size.turns)) };
            let seconds = best_of(size.turn_rounds, threads, run);
            let macs = products.macs * CHAINS * size.turns * threads;
            format!("{:.1}", 1e-9 * macs as f64 / seconds)
        }
    };
    let name = integers.as_ref().map_or("null".to_owned(), |of| format!("\"{}\"", of.name));
    format!(
        "{{\"threads\": {threads}, \"read_gb_s\": {read_gb_s:.2}, \"integers\": {name}, \
         \"integers_gmac_s\": {}, \"fma_gmac_s\": {}}}",
        rate(&integers),
        rate(&floats),
    )
}

/// The shortest time in which all threads do `work`, which gets the round and the thread.
fn best_of(rounds: usize, threads: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let run = |thread: usize| -> Vec<(Instant, Instant)> {
        let round = |round| {
            barrier.wait();
            let start = Instant::now();
            work(round, thread);
            (start, Instant::now())
        };
        (0..rounds).map(round).collect()
    };
    let times: Vec<_> = scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("no work panics")).collect()
    });
    let seconds = |round: usize| {
        let starts = times.iter().map(|of: &Vec<_>| of[round].0);
        let ends = times.iter().map(|of| of[round].1);
        let first = starts.min().expect("there is a thread");
        ends.max().expect("there is a thread").duration_since(first).as_secs_f64()
    };
    (0..rounds).map(seconds).fold(f64::INFINITY, f64::min)
}

fn read(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { x86::sum(words) };
    }
    sum(words)
}

#[inline(always)]
fn sum(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<LANES>();
    let mut sums = [0_u64; LANES];
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, &word| sum.wrapping_add(word))
}

/// How the kernels multiply bytes here, and how float32; none where they are plain Rust.
fn products() -> (Option<Products>, Option<Products>) {
    let products = |name, macs, run| Some(Products { name, macs, run });
    match Processor::best().name() {
        #[cfg(target_arch = "x86_64")]
        "AVX-512 VNNI" => (
            products("vpdpbusd, 512 bits", 64, x86::dpbusd_512 as Chains),
            products("vfmadd", 16, x86::fma_512 as Chains),
        ),
        #[cfg(target_arch = "x86_64")]
        "AVX-VNNI" => (
            products("vpdpbusd, 256 bits", 32, x86::dpbusd_256 as Chains),
            products("vfmadd", 8, x86::fma_256 as Chains),
        ),
        #[cfg(target_arch = "x86_64")]
        "AVX2" => (
            products("vpmaddubsw", 32, x86::maddubs as Chains),
            products("vfmadd", 8, x86::fma_256 as Chains),
        ),
        _ => (None, None),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::CHAINS;

    #[target_feature(enable = "avx2")]
    pub fn sum(words: &[u64]) -> u64 {
        super::sum(words)
    }

    /// `$name(turns)`: [`CHAINS`] sums become `$step` of themselves and a factor, `turns` times.
    macro_rules! chains {
        ($name:ident, $features:literal, $one:expr, $step:expr) => {
            #[target_feature(enable = $features)]
            pub fn $name(turns: usize) {
                let factor = black_box($one);
                let mut sums = [factor; CHAINS];
                for _ in 0..turns {
                    for sum in &mut sums {
                        *sum = $step(*sum, factor);
                    }
                }
                black_box(sums);
            }
        };
    }

    chains!(maddubs, "avx2", _mm256_set1_epi8(1), |sum, x| _mm256_maddubs_epi16(sum, x));
    chains!(fma_256, "avx2,fma", _mm256_set1_ps(0.5), |sum, x| _mm256_fmadd_ps(x, x, sum));
    chains!(dpbusd_256, "avx2,avxvnni", _mm256_set1_epi8(1), |sum, x| {
        _mm256_dpbusd_avx_epi32(sum, x, x)
    });
    chains!(fma_512, "avx512f", _mm512_set1_ps(0.5), |sum, x| _mm512_fmadd_ps(x, x, sum));
    chains!(dpbusd_512, "avx512f,avx512vnni", _mm512_set1_epi8(1), |sum, x| {
        _mm512_dpbusd_epi32(sum, x, x)
    });
}

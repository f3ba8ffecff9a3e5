//! A task: one head of one sequence, sixteen columns of its state after the others.
//!
//! In: a step and the number of a task. Out: what the task's rows give, the state with what is
//! committed, and updates.

use super::heads::{Factors, Heads, Prepared, Rule, Step};
use super::run::Sequence;
use super::states::Half;
use super::tile::{RowOutput, RowQuery, Tile, Update, pass};
use super::walk::{MOST_ROWS, Pass, StateSlot, Walk};
use crate::kernels::Workspace;
use crate::kernels::lanes::{Lanes, WIDTH, on_processor, store_some};

on_processor! {
    floats,
    /// Computes one head of one sequence.
    ///
    /// # Safety
    ///
    /// The output has all rows; nobody else reads or writes this task's head of rows, states and
    /// updates.
    compute_head<R: Rule> = compute(step: &Step<'_, R>, task: usize, workspace: &mut Workspace)
}

/// A head of a sequence.
struct Task<'a, R> {
    step: &'a Step<'a, R>,
    heads: Heads,
    head: usize,
    sequence: &'a Sequence,
    walk: &'a Walk,
    /// `(rows, keys)`, in the order of the walk's members, as all of rows.
    keys: &'a mut [f32],
    /// `(rows, keys)`.
    queries: &'a mut [f32],
    /// `(rows, padded)`: first as they are given, then as they are added.
    values: &'a mut [f32],
    factors: &'a mut [Factors],
    /// States of its own, `(num_own, keys, WIDTH)`.
    own: *mut f32,
}

#[inline(always)]
unsafe fn compute<L: Lanes, R: Rule>(step: &Step<'_, R>, task: usize, workspace: &mut Workspace) {
    let heads = step.rule.heads();
    let (sequence, head) = (task / heads.heads, task % heads.heads);
    let (walk, sequence) = (&step.walks[sequence], &step.run.sequences[sequence]);
    let (count, padded) = (sequence.nodes.len(), heads.padded());
    let own = walk.num_own * heads.keys * WIDTH;
    let workspace = workspace.of(own + count * (padded + 2 * heads.keys));
    let (own, workspace) = workspace.split_at_mut(own);
    let (values, workspace) = workspace.split_at_mut(count * padded);
    let (keys, queries) = workspace.split_at_mut(count * heads.keys);
    let factors = &mut vec![Factors::default(); count];
    let own = own.as_mut_ptr();
    let mut task = Task { step, heads, head, sequence, walk, keys, queries, values, factors, own };
    // SAFETY: by contract.
    unsafe {
        task.prepare::<L>();
        for tile in 0..padded / WIDTH {
            task.walk_tile::<L>(tile);
        }
        task.finish::<L>();
    }
}

impl<R: Rule> Task<'_, R> {
    #[inline(always)]
    unsafe fn prepare<L: Lanes>(&mut self) {
        let Heads { keys, values, .. } = self.heads;
        let padded = self.heads.padded();
        for member in 0..self.factors.len() {
            let row = self.row(member);
            let (value, rest) = self.values[member * padded..][..padded].split_at_mut(values);
            rest.fill(0.0);
            let key = &mut self.keys[member * keys..][..keys];
            let query = &mut self.queries[member * keys..][..keys];
            // SAFETY: by contract.
            self.factors[member] = unsafe {
                self.step.rule.prepare::<L>(row, self.head, Prepared { key, query, value })
            };
        }
    }

    /// The row of a member that has one.
    #[inline(always)]
    fn row(&self, member: usize) -> usize {
        self.walk.members[member].row.expect("the first members have rows")
    }

    /// Where what a member's head gives is, `(values,)`.
    #[inline(always)]
    fn given(&self, member: usize) -> *mut [f32] {
        let Heads { heads, values, .. } = self.heads;
        let start = (self.row(member) * heads + self.head) * values;
        std::ptr::slice_from_raw_parts_mut(self.step.given.wrapping_add(start), values)
    }

    /// Takes sixteen columns of the state through all passes.
    #[inline(always)]
    unsafe fn walk_tile<L: Lanes>(&mut self, tile: usize) {
        let size = self.heads.keys * WIDTH;
        let start = self.head * self.heads.matrix() + tile * size;
        let (states, number) = (self.step.run.states, self.sequence.number);
        // SAFETY: by contract: the state has the head, which is this task's.
        unsafe {
            let committed = states.numbers(number, Half::Now).add(start);
            let (first, rest) = self.walk.passes.split_first().expect("a walk begins");
            self.apply_pending::<L>(*first, committed, tile);
            if self.sequence.keeps() {
                let before = states.numbers(number, Half::Before).add(start);
                before.copy_from_nonoverlapping(committed, size);
            }
            for pass in rest {
                let update = pass.applied.map(|member| self.update(member, tile));
                self.pass::<L>(*pass, update, committed, tile, None);
            }
        }
    }

    /// The walk's first pass, with what is pending.
    #[inline(always)]
    unsafe fn apply_pending<L: Lanes>(&mut self, first: Pass, committed: *mut f32, tile: usize) {
        let next = committed.wrapping_add(self.heads.keys * WIDTH).cast_const();
        let mut next = Some(next);
        let pending = &self.sequence.pending;
        // SAFETY: by contract of `walk_tile`.
        unsafe {
            let Some((last, before)) = pending.split_last() else {
                return self.pass::<L>(first, None, committed, tile, next);
            };
            let to = Some(StateSlot::Committed);
            for node in before {
                let pass = Pass { to, rows: [None; MOST_ROWS], ..first };
                self.pass::<L>(pass, Some(self.kept(*node, tile)), committed, tile, next.take());
            }
            let update = Some(self.kept(*last, tile));
            self.pass::<L>(Pass { to, ..first }, update, committed, tile, next);
        }
    }

    /// A member's update.
    #[inline(always)]
    unsafe fn update(&self, member: usize, tile: usize) -> Update {
        let Some(factors) = self.factors.get(member) else {
            // SAFETY: a member without a row has an update from before.
            return unsafe { self.kept(self.walk.members[member].node, tile) };
        };
        Update {
            key: self.keys[member * self.heads.keys..].as_ptr(),
            value: self.values[member * self.heads.padded() + tile * WIDTH..].as_ptr(),
            decay: factors.decay,
        }
    }

    /// The update that is kept of a node.
    #[inline(always)]
    unsafe fn kept(&self, node: u32, tile: usize) -> Update {
        let numbers = self.step.run.last.numbers(node as usize);
        let [key, value, decay] = self.heads.places(self.head);
        // SAFETY: an update has the places of all heads.
        unsafe {
            let value = numbers.add(value + tile * WIDTH);
            Update { key: numbers.add(key), value, decay: *numbers.add(decay) }
        }
    }

    /// A pass over a tile, and what its rows make of the answers.
    #[inline(always)]
    unsafe fn pass<L: Lanes>(
        &mut self,
        given: Pass,
        update: Option<Update>,
        committed: *mut f32,
        tile: usize,
        next: Option<*const f32>,
    ) {
        let keys = self.heads.keys;
        let at = |place: StateSlot| match place {
            StateSlot::Committed => committed,
            StateSlot::Own(index) => self.own.wrapping_add(index * keys * WIDTH),
        };
        let matrix = Tile { from: at(given.from), to: given.to.map(at), keys, next };
        let row_query = |member: Option<usize>| {
            let start = member.unwrap_or(0) * keys;
            let (key, query) = (self.keys.as_ptr(), self.queries.as_ptr());
            RowQuery { key: key.wrapping_add(start), query: query.wrapping_add(start) }
        };
        let row_queries = given.rows.map(row_query);
        let count = given.rows.iter().flatten().count();
        // SAFETY: by contract; members have their rows.
        unsafe {
            let mut outputs: [RowOutput<L>; MOST_ROWS] = [[L::splat(0.0); 2]; MOST_ROWS];
            pass::<L, R>(matrix, update, &row_queries[..count], &mut outputs);
            for (member, [under_key, under_query]) in given.rows.into_iter().flatten().zip(outputs)
            {
                let Factors { decay, strength, key_query } = self.factors[member];
                let decay = L::splat(decay);
                let at = member * self.heads.padded() + tile * WIDTH;
                let value = self.values[at..at + WIDTH].as_mut_ptr();
                let mut epilogue = L::load(value);
                if R::IS_DELTA {
                    let new = L::subtract(epilogue, L::multiply(decay, under_key));
                    epilogue = L::multiply(new, L::splat(strength));
                    L::store(value, epilogue);
                }
                let read = L::fused(L::splat(key_query), epilogue, L::multiply(decay, under_query));
                store_some::<L>(&mut *self.given(member), tile * WIDTH, read);
            }
        }
    }

    /// Makes of what rows have read what they give, and keeps their updates.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&mut self) {
        let (keys, padded) = (self.heads.keys, self.heads.padded());
        let [key, value, decay] = self.heads.places(self.head);
        // The first of the heads that a key serves keeps it.
        let of = |head: usize| self.heads.key_of(head);
        let keeps_key = self.head == 0 || of(self.head - 1) < of(self.head);
        for (member, factors) in self.factors.iter().enumerate() {
            // SAFETY: by contract; an update has the places of all heads.
            unsafe {
                let read = &mut *self.given(member);
                self.step.rule.finish::<L>(self.row(member), self.head, read);
                if self.sequence.reads {
                    continue;
                }
                let node = self.walk.members[member].node as usize;
                let numbers = self.step.run.next.numbers(node);
                if keeps_key {
                    let from = self.keys[member * keys..].as_ptr();
                    numbers.add(key).copy_from_nonoverlapping(from, keys);
                }
                let from = self.values[member * padded..].as_ptr();
                numbers.add(value).copy_from_nonoverlapping(from, padded);
                *numbers.add(decay) = factors.decay;
            }
        }
    }
}

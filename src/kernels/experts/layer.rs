//! What a layer of experts is made of, and where each expert's weights stand.
//!
//! In: sizes and types. Out: whether there can be such a layer, and the matrices of an expert within the
//! bytes of all.

use super::route::Router;
use crate::kernels::product::{Gate, WeightType, Weights};

/// So many columns, or numbers of an expert, that no size of what is read overflows.
const MOST: usize = 1 << 24;
/// Experts that a layer may have.
const MOST_EXPERTS: usize = 1 << 12;
/// What an expert's bytes are filled up to, so that each begins at a page of a mapped file on most
/// systems; where pages are larger, neighbours share some.
const PAGE: usize = 1 << 12;

/// What is wrong with a layer, or with what a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ExpertsError {
    #[error("columns, size or the number of experts is out of range")]
    Sizes,
    #[error("{chosen} of {experts} experts cannot be chosen")]
    Chosen { chosen: usize, experts: usize },
    #[error("columns or size are no whole blocks of type {0}")]
    Blocks(&'static str),
    #[error("{input} has {got} numbers, not {expected}")]
    Input { input: &'static str, got: usize, expected: usize },
    #[error("the experts' weights have {got} bytes, not {expected}")]
    Weights { got: usize, expected: usize },
    #[error("rows are none, or too many")]
    Rows,
    #[error("there is a gate for what stands beside the experts, but nothing does")]
    BesideGate,
}

/// A layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Numbers of a row.
    pub columns: usize,
    /// Numbers of an expert's feed-forward.
    pub size: usize,
    /// How rows choose.
    pub router: Router,
    /// Types of gate, up and down.
    pub types: [WeightType; 3],
    /// How up is gated.
    pub gate: Gate,
    /// Of the norm, if there is one.
    pub epsilon: f32,
    /// What all but the residual is multiplied by.
    pub residual_scale: f32,
}

impl Experts {
    /// Checks that there can be such a layer.
    ///
    /// # Errors
    ///
    /// `Sizes`, `Chosen` or `Blocks`.
    pub fn check(&self) -> Result<(), ExpertsError> {
        let Router { experts, chosen, .. } = self.router;
        let is_right = |size: usize, most: usize| (1..=most).contains(&size);
        let are_right = is_right(self.columns, MOST) && is_right(self.size, MOST);
        if !are_right || !is_right(experts, MOST_EXPERTS) {
            return Err(ExpertsError::Sizes);
        }
        let bytes = self.stride().checked_mul(experts);
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(ExpertsError::Sizes);
        }
        if !is_right(chosen, experts) {
            return Err(ExpertsError::Chosen { chosen, experts });
        }
        let inner = [self.columns, self.columns, self.size];
        match self.types.iter().zip(inner).find(|(kind, columns)| !kind.fits(*columns)) {
            Some((kind, _)) => Err(ExpertsError::Blocks(kind.name())),
            None => Ok(()),
        }
    }

    /// Outputs and columns of gate, up and down.
    pub(super) fn shapes(&self) -> [[usize; 2]; 3] {
        let up = [self.size, self.columns];
        [up, up, [self.columns, self.size]]
    }

    /// Bytes from an expert to the next: its panels of gate, up and down, filled up to whole pages.
    pub fn stride(&self) -> usize {
        self.ends()[2].next_multiple_of(PAGE)
    }

    /// Where gate, up and down end, in bytes from an expert's first.
    fn ends(&self) -> [usize; 3] {
        let mut end = 0;
        let mut sizes = self.types.into_iter().zip(self.shapes());
        [(); 3].map(|()| {
            let (kind, [outputs, columns]) = sizes.next().expect("there are three");
            end += kind.num_bytes(outputs, columns);
            end
        })
    }

    /// Gate, up or down, by its number, of an expert within the weights of all.
    pub(super) fn weights<'a>(&self, all: &'a [u8], expert: usize, matrix: usize) -> Weights<'a> {
        let (kind, [outputs, columns]) = (self.types[matrix], self.shapes()[matrix]);
        let bytes = kind.num_bytes(outputs, columns);
        let start = expert * self.stride() + self.ends()[matrix] - bytes;
        Weights { kind, outputs, panels: &all[start..start + bytes] }
    }
}

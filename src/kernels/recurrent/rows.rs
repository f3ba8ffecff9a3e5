//! Rows of a product, of which a layer reads some columns.
//!
//! In: a matrix. Out: some columns of a row.

/// Rows of float32, `(M, width)`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// All of them.
    pub numbers: &'a [f32],
    /// Numbers of a row.
    pub width: usize,
}

impl<'a> Rows<'a> {
    /// Whether there are so many rows, and each has so many columns from `first` on.
    pub(super) fn have(&self, rows: usize, first: usize, columns: usize) -> bool {
        let end = first.checked_add(columns);
        end.is_some_and(|end| end <= self.width)
            && rows.checked_mul(self.width) == Some(self.numbers.len())
    }

    /// So many columns of a row, from `first` on.
    #[inline(always)]
    pub(super) fn part(&self, row: usize, first: usize, columns: usize) -> &'a [f32] {
        &self.numbers[row * self.width + first..][..columns]
    }
}

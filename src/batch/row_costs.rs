//! What a step of several requests costs. In: what steps of one request cost at some widths. Out: the
//! cost of any number of rows.

use crate::draft::choose::step_choice::StepCost;
use crate::error::{Error, Result};

/// What a step costs by its rows: measured at some widths, linear between them, below the first as at
/// it, and beyond the last as between the last two; of one width alone each further row costs as much
/// as one of its own. With more rows nothing gets cheaper beyond what was measured.
///
/// All rows of a step share what it costs behind no token. What it costs more for every token that is
/// attended to, each request pays for itself: by the rows that it has, as in a step of its own, since
/// no other request's rows attend to its tokens.
///
/// ```
/// use coordgen_rs::StepCost;
/// use coordgen_rs::batch::RowCosts;
///
/// let costs = RowCosts::new(&[(1, 2.0.into()), (5, StepCost { base: 4.0, per_token: 0.1 })])?;
/// assert_eq!([1, 3, 5, 7].map(|rows| costs.base(rows)), [2.0, 3.0, 4.0, 5.0]);
/// assert_eq!(costs.attention(5, 100), 10.0);
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RowCosts {
    /// Rows and what a step of them costs, in increasing order of rows; one or more.
    measured: Vec<(usize, StepCost)>,
}

impl RowCosts {
    /// Costs of steps of one request, in increasing order of rows.
    ///
    /// Fails when there is none, the rows are not positive and increasing, or a cost is not positive or
    /// falls with the number of tokens.
    pub fn new(rows_and_costs: &[(usize, StepCost)]) -> Result<Self> {
        let has_rows = rows_and_costs.first().is_some_and(|&(rows, _)| rows > 0);
        if !has_rows || !rows_and_costs.is_sorted_by(|one, next| one.0 < next.0) {
            let rows: Vec<usize> = rows_and_costs.iter().map(|&(rows, _)| rows).collect();
            let (what, must) = ("rows with a cost", "one or more, positive, in increasing order");
            return Err(Error::BadOption { what, got: format!("{rows:?}"), must });
        }
        if let Some((_, bad)) = rows_and_costs.iter().find(|(_, cost)| !cost.is_usable()) {
            let (what, must) = ("a cost", "positive, and not less for more tokens");
            return Err(Error::BadOption { what, got: bad.to_string(), must });
        }
        Ok(Self { measured: rows_and_costs.to_vec() })
    }

    /// What all requests' rows cost together behind no token; nothing where there is none.
    pub fn base(&self, rows: usize) -> f32 {
        if rows == 0 { 0.0 } else { self.between(rows, |cost| cost.base) }
    }

    /// What a request's own rows cost more behind `length` tokens; nothing where it has none.
    pub fn attention(&self, rows: usize, length: usize) -> f32 {
        if rows == 0 { 0.0 } else { self.between(rows, |cost| cost.per_token) * length as f32 }
    }

    /// One number of the costs at so many rows.
    fn between(&self, rows: usize, of: impl Fn(&StepCost) -> f32) -> f32 {
        let at = |index: usize| (self.measured[index].0, of(&self.measured[index].1));
        let wider = self.measured.partition_point(|&(measured, _)| measured < rows);
        let last = self.measured.len() - 1;
        if wider <= last && (wider == 0 || self.measured[wider].0 == rows) {
            return at(wider).1;
        }
        let is_beyond = wider > last;
        let (near, far) = match wider.min(last) {
            0 => ((0, 0.0), at(0)),
            far => (at(far - 1), at(far)),
        };
        let slope = (far.1 - near.1) / (far.0 - near.0) as f32;
        if is_beyond {
            far.1 + slope.max(0.0) * (rows - far.0) as f32
        } else {
            near.1 + slope * (rows - near.0) as f32
        }
    }
}

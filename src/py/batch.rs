//! `Batcher` for Python: who gets the rows of a step that several requests share.

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::flat;
use super::draft::CostOption;
use crate::batch::{Batcher, Decoding, Prefilling, RowCosts};
use crate::error::Error;

#[doc = stub_doc!("Batcher")]
#[pyclass(name = "Batcher", module = "coordgen_rs._core")]
pub struct PyBatcher {
    core: Batcher,
}

/// Nodes of each request that decodes, tokens of each prompt, and what each request that decodes pays.
type SharesOut = (Vec<usize>, Vec<usize>, Vec<f32>);

#[pymethods]
impl PyBatcher {
    #[new]
    fn new(rows: Vec<usize>, costs: Option<Vec<CostOption>>, most_rows: usize) -> PyResult<Self> {
        let costs = costs.map(|costs| {
            let (got, expected) = (costs.len(), rows.len());
            if got != expected {
                return Err(Error::WrongLength { what: "costs", got, expected });
            }
            let costs = costs.into_iter().map(|cost| cost.into());
            RowCosts::new(&rows.iter().copied().zip(costs).collect::<Vec<_>>())
        });
        Ok(Self { core: Batcher::new(costs.transpose()?, most_rows)? })
    }

    #[doc = stub_doc!("Batcher.share")]
    fn share(
        &mut self,
        decoding: Vec<(Bound<'_, PyAny>, usize, usize)>,
        reading: Vec<(usize, usize)>,
    ) -> PyResult<SharesOut> {
        let worths = decoding.iter().map(|(worths, ..)| {
            Ok(flat::<f32>(worths, "worths")?.try_readonly()?.as_slice()?.to_vec())
        });
        let worths = worths.collect::<PyResult<Vec<_>>>()?;
        let requests = worths.iter().zip(&decoding);
        let decoding: Vec<_> = requests
            .map(|(worths, &(_, least, length))| Decoding { worths, least, length })
            .collect();
        let reading: Vec<_> = reading
            .into_iter()
            .map(|(remaining, length)| Prefilling { remaining, length })
            .collect();
        let shares = self.core.share(&decoding, &reading)?;
        Ok((shares.nodes, shares.tokens, shares.costs))
    }

    #[doc = stub_doc!("Batcher.took")]
    fn took(&mut self, tokens: usize, cost: f32) -> PyResult<()> {
        Ok(self.core.took(tokens, cost)?)
    }
}

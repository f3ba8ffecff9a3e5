//! `Sampling` for Python, and the tokens that penalties are on.

use std::collections::BTreeMap;

use numpy::PyArrayMethods;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::convert::{Arg, Argument, NewArguments, array, token_ids};
use super::errors::ShapeError;
use crate::error::Error;
use crate::ids::TokenId;
use crate::sampling::{LogitBias, Penalties, Sampling, SeenTokens, check_vocab_size};

#[doc = stub_doc!("Sampling")]
#[pyclass(name = "Sampling", module = "coordgen_rs._core", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq)]
pub struct PySampling(pub Sampling);

#[pymethods]
impl PySampling {
    #[new]
    #[pyo3(
        signature = (
            temperature=Arg::Valid(1.0), *, top_k=Arg::Valid(0), top_p=Arg::Valid(1.0),
            min_p=Arg::Valid(0.0), repetition_penalty=Arg::Valid(1.0),
            presence_penalty=Arg::Valid(0.0), frequency_penalty=Arg::Valid(0.0),
            logit_bias=Arg::Valid(None), seed=Arg::Valid(0)
        ),
        text_signature = "(temperature=1.0, *, top_k=0, top_p=1.0, min_p=0.0, \
            repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, \
            seed=0)"
    )]
    fn new(
        temperature: Arg<f32>,
        top_k: Arg<usize>,
        top_p: Arg<f32>,
        min_p: Arg<f32>,
        repetition_penalty: Arg<f32>,
        presence_penalty: Arg<f32>,
        frequency_penalty: Arg<f32>,
        logit_bias: Arg<Option<BTreeMap<i128, f32>>>,
        seed: Arg<u64>,
    ) -> PyResult<Self> {
        let (top_k, top_p) = (top_k.named("top_k")?, top_p.named("top_p")?);
        let (temperature, seed) = (temperature.named("temperature")?, seed.named("seed")?);
        let sampling = Sampling::new(temperature, top_k, top_p, seed)?;
        let sampling = sampling.with_min_p(min_p.named("min_p")?)?;
        let sampling = sampling.with_penalties(Penalties {
            repetition: repetition_penalty.named("repetition_penalty")?,
            presence: presence_penalty.named("presence_penalty")?,
            frequency: frequency_penalty.named("frequency_penalty")?,
        })?;
        let logit_bias = biases(logit_bias.named("logit_bias")?.unwrap_or_default())?;
        Ok(Self(sampling.with_logit_bias(logit_bias)))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<NewArguments<'py>> {
        let (core, named) = (&self.0, PyDict::new(py));
        named.set_item("temperature", core.temperature)?;
        named.set_item("top_k", core.top_k)?;
        named.set_item("top_p", core.top_p)?;
        named.set_item("min_p", core.min_p)?;
        named.set_item("repetition_penalty", core.penalties.repetition)?;
        named.set_item("presence_penalty", core.penalties.presence)?;
        named.set_item("frequency_penalty", core.penalties.frequency)?;
        let biases = core.logit_bias.iter().map(|(token, bias)| (token.0, bias));
        named.set_item("logit_bias", biases.collect::<BTreeMap<_, _>>())?;
        named.set_item("seed", core.seed)?;
        Ok((PyTuple::empty(py), named))
    }

    #[doc = stub_doc!("Sampling.penalises")]
    #[getter]
    fn penalises(&self) -> bool {
        self.0.penalises()
    }

    #[doc = stub_doc!("Sampling.changes_scores")]
    #[getter]
    fn changes_scores(&self) -> bool {
        self.0.changes_scores()
    }

    #[doc = stub_doc!("Sampling.check_tokens")]
    fn check_tokens(&self, vocab_size: Arg<usize>) -> PyResult<()> {
        Ok(self.0.check_tokens(vocab_size.named("vocab_size")?)?)
    }

    #[doc = stub_doc!("Sampling.draw")]
    #[pyo3(signature = (logits, index, seen=None))]
    fn draw(
        &self,
        logits: &Bound<'_, PyAny>,
        index: Arg<u64>,
        seen: Option<PyRefMut<'_, PySeenTokens>>,
    ) -> PyResult<u32> {
        let logits = array::<f32>(logits, "logits")?.try_readonly()?;
        let (scores, index) = (logits.as_slice()?, index.named("index")?);
        self.0.check_tokens(scores.len())?;
        let drawn = match seen {
            _ if !self.0.changes_scores() => self.0.draw(scores, index),
            Some(mut seen) => {
                seen.check(scores.len())?;
                self.0.choose(&mut scores.to_vec(), index, &mut seen.core)
            }
            None => self.0.choose(&mut scores.to_vec(), index, &mut SeenTokens::default()),
        };
        let TokenId(token) = drawn.ok_or_else(|| self.0.failure(&mut scores.to_vec(), 0))?;
        Ok(token)
    }

    /// What differs from the defaults.
    fn __repr__(&self) -> String {
        let core = &self.0;
        let Penalties { repetition, presence, frequency } = core.penalties;
        let num_biases = core.logit_bias.iter().count();
        let first = core.logit_bias.iter().take(MOST_SHOWN_BIASES);
        let mut biases: Vec<_> =
            first.map(|(token, bias)| format!("{}: {bias:?}", token.0)).collect();
        if num_biases > MOST_SHOWN_BIASES {
            biases.push(format!(".. {num_biases} in all"));
        }
        let parts = [
            (core.temperature != 1.0).then(|| format!("temperature={:?}", core.temperature)),
            (core.top_k != 0).then(|| format!("top_k={}", core.top_k)),
            (core.top_p != 1.0).then(|| format!("top_p={:?}", core.top_p)),
            (core.min_p != 0.0).then(|| format!("min_p={:?}", core.min_p)),
            (repetition != 1.0).then(|| format!("repetition_penalty={repetition:?}")),
            (presence != 0.0).then(|| format!("presence_penalty={presence:?}")),
            (frequency != 0.0).then(|| format!("frequency_penalty={frequency:?}")),
            (num_biases > 0).then(|| format!("logit_bias={{{}}}", biases.join(", "))),
            (core.seed != 0).then(|| format!("seed={}", core.seed)),
        ];
        format!("Sampling({})", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Most biases that are shown of a `Sampling`.
const MOST_SHOWN_BIASES: usize = 4;

impl Argument for BTreeMap<i128, f32> {
    const MUST: &'static str = "numbers by token id";
}

/// Biases by token id. Fails when an id is none, or a bias out of range.
fn biases(by_id: BTreeMap<i128, f32>) -> PyResult<LogitBias> {
    let token = |(id, bias): (i128, f32)| {
        let id = u32::try_from(id).map_err(|_| {
            let (what, must) = ("a token id of logit_bias", "0 or more, and below 2^32");
            Error::BadOption { what, got: id.to_string(), must }
        })?;
        Ok((TokenId(id), bias))
    };
    let biases = by_id.into_iter().map(token).collect::<Result<Vec<_>, Error>>()?;
    Ok(LogitBias::new(&biases)?)
}

#[doc = stub_doc!("SeenTokens")]
#[pyclass(name = "SeenTokens", module = "coordgen_rs._core")]
pub struct PySeenTokens {
    core: SeenTokens,
    vocab_size: usize,
}

#[pymethods]
impl PySeenTokens {
    #[new]
    fn new(vocab_size: Arg<usize>) -> PyResult<Self> {
        let vocab_size = vocab_size.named("vocab_size")?;
        check_vocab_size(vocab_size)?;
        Ok(Self { core: SeenTokens::default(), vocab_size })
    }

    #[doc = stub_doc!("SeenTokens.restart")]
    fn restart(&mut self, prompt_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.restart(&self.known(prompt_ids, "prompt_ids")?);
        Ok(())
    }

    #[doc = stub_doc!("SeenTokens.extend")]
    fn extend(&mut self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.extend(&self.known(tokens, "tokens")?);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.core.len()
    }
}

impl PySeenTokens {
    /// Tokens of the vocabulary. Fails when one is unknown.
    fn known(&self, tokens: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<TokenId>> {
        let (tokens, vocab_size) = (token_ids(tokens, what)?, self.vocab_size);
        match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
            Some(&token) => Err(Error::TokenOutOfRange { token, vocab_size }.into()),
            None => Ok(tokens),
        }
    }

    /// Fails when a row of so many scores is of another vocabulary.
    fn check(&self, num_scores: usize) -> PyResult<()> {
        if num_scores == self.vocab_size {
            return Ok(());
        }
        let message = format!(
            "logits have {num_scores} scores, the seen tokens' vocabulary {}",
            self.vocab_size
        );
        Err(ShapeError::new_err(message))
    }
}

//! Core errors as named Python exceptions, all below `CoordgenError`.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::Error;

create_exception!(
    coordgen_rs._core,
    CoordgenError,
    PyException,
    "Base of all errors of coordgen_rs."
);
create_exception!(
    coordgen_rs._core,
    TokenOutOfRangeError,
    CoordgenError,
    "A token id is not in the vocabulary."
);
create_exception!(
    coordgen_rs._core,
    EmptyPromptError,
    CoordgenError,
    "A request has no token to continue from."
);
create_exception!(
    coordgen_rs._core,
    NonFiniteLogitsError,
    CoordgenError,
    "Logits hold NaN, or nothing finite."
);
create_exception!(
    coordgen_rs._core,
    GrammarError,
    CoordgenError,
    "A grammar cannot be used, or cannot go on."
);
create_exception!(
    coordgen_rs._core,
    InvalidDraftError,
    CoordgenError,
    "A draft tree is malformed or too large."
);
create_exception!(
    coordgen_rs._core,
    ShapeError,
    CoordgenError,
    "An array has the wrong shape, or a step does not fit."
);
create_exception!(
    coordgen_rs._core,
    CallOrderError,
    CoordgenError,
    "Calls came out of their order."
);
create_exception!(
    coordgen_rs._core,
    OptionError,
    CoordgenError,
    "An option is unknown or outside its range."
);

create_exception!(
    coordgen_rs._core,
    HistoryIndexError,
    CoordgenError,
    "The index of a history cannot be used or written."
);

create_exception!(
    coordgen_rs._core,
    LookupTableError,
    CoordgenError,
    "A saved look-up table cannot be used, or a table not be written."
);

create_exception!(
    coordgen_rs._core,
    BlockLoadError,
    CoordgenError,
    "A graph of a block cannot be loaded (the message names it), or loading was cancelled."
);
create_exception!(
    coordgen_rs._core,
    ForkedError,
    CoordgenError,
    "This process is a fork of the one that opened what it uses, and lacks its threads."
);
create_exception!(
    coordgen_rs._core,
    MemoryBudgetError,
    CoordgenError,
    "Nothing that can run fits into the memory budget."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::TokenOutOfRange { .. } => TokenOutOfRangeError::new_err(message),
            Error::EmptyPrompt => EmptyPromptError::new_err(message),
            Error::NonFiniteLogits { .. } => NonFiniteLogitsError::new_err(message),
            Error::NothingAllowed | Error::ConstraintFailed { .. } => {
                GrammarError::new_err(message)
            }
            Error::ParentAfterChild { .. }
            | Error::WrongRoot { .. }
            | Error::TooManyNodes { .. } => InvalidDraftError::new_err(message),
            Error::WrongLength { .. } | Error::StepOutOfRange { .. } => {
                ShapeError::new_err(message)
            }
            Error::NothingProposed
            | Error::NoRequest
            | Error::WrongBlock { .. }
            | Error::StillRunning { .. }
            | Error::NothingRunning
            | Error::RunsLeft { .. } => CallOrderError::new_err(message),
            Error::UnusableIndex { .. } | Error::IndexNotWritten { .. } => {
                HistoryIndexError::new_err(message)
            }
            Error::UnusableTable { .. } | Error::TableNotWritten { .. } => {
                LookupTableError::new_err(message)
            }
            Error::LoadFailed { .. }
            | Error::LoadingCancelled
            | Error::WaitInterrupted
            | Error::NoThread { .. } => BlockLoadError::new_err(message),
            Error::Forked => ForkedError::new_err(message),
            Error::BudgetTooSmall { .. } => MemoryBudgetError::new_err(message),
            Error::UnknownSource { .. }
            | Error::UnknownMethod { .. }
            | Error::MethodNeeds { .. }
            | Error::OtherVocabulary { .. }
            | Error::BadOption { .. } => OptionError::new_err(message),
        }
    }
}

/// Adds the exceptions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for (name, exception) in [
        ("CoordgenError", py.get_type::<CoordgenError>()),
        ("TokenOutOfRangeError", py.get_type::<TokenOutOfRangeError>()),
        ("EmptyPromptError", py.get_type::<EmptyPromptError>()),
        ("NonFiniteLogitsError", py.get_type::<NonFiniteLogitsError>()),
        ("GrammarError", py.get_type::<GrammarError>()),
        ("InvalidDraftError", py.get_type::<InvalidDraftError>()),
        ("ShapeError", py.get_type::<ShapeError>()),
        ("CallOrderError", py.get_type::<CallOrderError>()),
        ("HistoryIndexError", py.get_type::<HistoryIndexError>()),
        ("LookupTableError", py.get_type::<LookupTableError>()),
        ("BlockLoadError", py.get_type::<BlockLoadError>()),
        ("ForkedError", py.get_type::<ForkedError>()),
        ("MemoryBudgetError", py.get_type::<MemoryBudgetError>()),
        ("OptionError", py.get_type::<OptionError>()),
    ] {
        module.add(name, exception)?;
    }
    Ok(())
}

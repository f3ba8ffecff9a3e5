//! Core errors as named Python exceptions, all below `CoordgenError`.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::Error;

create_exception!(coordgen_rs._core, CoordgenError, PyException, stub_doc!("CoordgenError"));
create_exception!(
    coordgen_rs._core,
    TokenOutOfRangeError,
    CoordgenError,
    stub_doc!("TokenOutOfRangeError")
);
create_exception!(
    coordgen_rs._core,
    EmptyPromptError,
    CoordgenError,
    stub_doc!("EmptyPromptError")
);
create_exception!(
    coordgen_rs._core,
    NonFiniteLogitsError,
    CoordgenError,
    stub_doc!("NonFiniteLogitsError")
);
create_exception!(coordgen_rs._core, GrammarError, CoordgenError, stub_doc!("GrammarError"));
create_exception!(
    coordgen_rs._core,
    InvalidDraftError,
    CoordgenError,
    stub_doc!("InvalidDraftError")
);
create_exception!(coordgen_rs._core, ShapeError, CoordgenError, stub_doc!("ShapeError"));
create_exception!(coordgen_rs._core, CallOrderError, CoordgenError, stub_doc!("CallOrderError"));
create_exception!(coordgen_rs._core, OptionError, CoordgenError, stub_doc!("OptionError"));

create_exception!(
    coordgen_rs._core,
    HistoryIndexError,
    CoordgenError,
    stub_doc!("HistoryIndexError")
);

create_exception!(
    coordgen_rs._core,
    LookupTableError,
    CoordgenError,
    stub_doc!("LookupTableError")
);

create_exception!(coordgen_rs._core, BlockLoadError, CoordgenError, stub_doc!("BlockLoadError"));
create_exception!(coordgen_rs._core, ForkedError, CoordgenError, stub_doc!("ForkedError"));
create_exception!(
    coordgen_rs._core,
    MemoryBudgetError,
    CoordgenError,
    stub_doc!("MemoryBudgetError")
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
            Error::WrongLength { .. }
            | Error::StepOutOfRange { .. }
            | Error::RowsNotAscending { .. } => ShapeError::new_err(message),
            Error::NothingProposed
            | Error::NothingOffered
            | Error::NoRequest
            | Error::WrongBlock { .. }
            | Error::StillRunning { .. }
            | Error::NothingRunning
            | Error::RunsLeft { .. }
            | Error::WithinAction => CallOrderError::new_err(message),
            Error::UnusableIndex { .. }
            | Error::IndexNotWritten { .. }
            | Error::UnusableHistory { .. }
            | Error::HistoryNotWritten { .. }
            | Error::HistoryInUse => HistoryIndexError::new_err(message),
            Error::UnusableTable { .. } | Error::TableNotWritten { .. } => {
                LookupTableError::new_err(message)
            }
            Error::LoadFailed { .. }
            | Error::ExpertsUnreadable { .. }
            | Error::LoadingCancelled
            | Error::WaitInterrupted
            | Error::NoThread { .. } => BlockLoadError::new_err(message),
            Error::Forked => ForkedError::new_err(message),
            Error::BudgetTooSmall { .. } => MemoryBudgetError::new_err(message),
            Error::UnknownSource { .. }
            | Error::UnknownMethod { .. }
            | Error::MethodNeeds { .. }
            | Error::OtherVocabulary { .. }
            | Error::NotOffered { .. }
            | Error::AllForbidden
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

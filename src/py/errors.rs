//! Core errors as named Python exceptions, all below `CoordgenError`.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::Error;

/// Makes exceptions, and adds them to the module.
macro_rules! exceptions {
    ($($exception:ident: $base:ident, $name:tt;)*) => {
        $(create_exception!(coordgen_rs._core, $exception, $base, stub_doc!($name));)*

        /// Adds the exceptions to the module.
        pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            $(module.add($name, module.py().get_type::<$exception>())?;)*
            Ok(())
        }
    };
}

exceptions! {
    CoordgenError: PyException, "CoordgenError";
    TokenOutOfRangeError: CoordgenError, "TokenOutOfRangeError";
    EmptyPromptError: CoordgenError, "EmptyPromptError";
    NonFiniteLogitsError: CoordgenError, "NonFiniteLogitsError";
    GrammarError: CoordgenError, "GrammarError";
    InvalidDraftError: CoordgenError, "InvalidDraftError";
    ShapeError: CoordgenError, "ShapeError";
    CallOrderError: CoordgenError, "CallOrderError";
    HistoryIndexError: CoordgenError, "HistoryIndexError";
    LookupTableError: CoordgenError, "LookupTableError";
    BlockLoadError: CoordgenError, "BlockLoadError";
    ForkedError: CoordgenError, "ForkedError";
    MemoryBudgetError: CoordgenError, "MemoryBudgetError";
    OptionError: CoordgenError, "OptionError";
}

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
            | Error::BadSetting { .. }
            | Error::MethodNeeds { .. }
            | Error::OtherVocabulary { .. }
            | Error::NotOffered { .. }
            | Error::AllForbidden
            | Error::BadOption { .. } => OptionError::new_err(message),
        }
    }
}

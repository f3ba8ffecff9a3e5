//! `atomic_file.rs` for Python, which opens its streams over what is created and locked here.

use std::io;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::atomic_file::{self, LockMode, Permissions};

#[doc = stub_doc!("Lock")]
#[pyclass(frozen, module = "coordgen_rs._core", name = "Lock")]
pub struct PyLock {
    lock: std::sync::Mutex<Option<atomic_file::FileLock>>,
    #[doc = stub_doc!("Lock.is_mine")]
    #[pyo3(get)]
    is_mine: bool,
    #[doc = stub_doc!("Lock.is_held")]
    #[pyo3(get)]
    is_held: bool,
    #[doc = stub_doc!("Lock.is_anothers")]
    #[pyo3(get)]
    is_anothers: bool,
}

#[pymethods]
impl PyLock {
    #[new]
    #[pyo3(signature = (path, *, shared = false))]
    fn new(py: Python<'_>, path: PathBuf, shared: bool) -> PyResult<Self> {
        let mode = if shared { LockMode::Shared } else { LockMode::Exclusive };
        let lock = py.detach(|| atomic_file::lock(&path, mode));
        Ok(lock.map_err(|error| os_error(&error, &path))?.into())
    }

    #[doc = stub_doc!("Lock.release")]
    fn release(&self, py: Python<'_>) {
        let lock = self.lock.lock().expect("nothing panics while mode it").take();
        py.detach(|| drop(lock));
    }
}

impl From<atomic_file::FileLock> for PyLock {
    fn from(lock: atomic_file::FileLock) -> Self {
        use atomic_file::FileLock::{Held, HeldByOther, Unsupported};
        let is_mine = matches!(lock, Held(_) | Unsupported);
        let is_held = matches!(lock, Held(_));
        let is_anothers = matches!(lock, HeldByOther);
        Self { lock: Some(lock).into(), is_mine, is_held, is_anothers }
    }
}

#[doc = stub_doc!("create_unfinished_file")]
#[pyfunction]
pub fn create_unfinished_file(
    py: Python<'_>,
    path: PathBuf,
    private: bool,
) -> PyResult<(PathBuf, isize)> {
    let permissions = if private { Permissions::OwnerOnly } else { Permissions::Default };
    let created = py.detach(|| atomic_file::create_file(&path, permissions));
    let (name, file) = created.map_err(|error| os_error(&error, &path))?;
    #[cfg(unix)]
    let file = std::os::fd::IntoRawFd::into_raw_fd(file) as isize;
    #[cfg(windows)]
    let file = std::os::windows::io::IntoRawHandle::into_raw_handle(file) as isize;
    Ok((name, file))
}

#[doc = stub_doc!("create_unfinished_directory")]
#[pyfunction]
pub fn create_unfinished_directory(py: Python<'_>, path: PathBuf) -> PyResult<(PathBuf, PyLock)> {
    let created = py.detach(|| atomic_file::create_folder(&path));
    let (name, lock) = created.map_err(|error| os_error(&error, &path))?;
    Ok((name, lock.into()))
}

#[doc = stub_doc!("remove_abandoned")]
#[pyfunction]
pub fn remove_abandoned(py: Python<'_>, path: PathBuf) -> Vec<(PathBuf, u64)> {
    let removed = py.detach(|| atomic_file::remove_abandoned(&path));
    removed.into_iter().map(|leftover| (leftover.path, leftover.num_bytes)).collect()
}

/// The `OSError` that Python would raise for `path`.
fn os_error(error: &io::Error, path: &Path) -> PyErr {
    let said = error.to_string();
    let reason = said.split(" (os error").next().unwrap_or_default().to_owned();
    let path = path.as_os_str().to_owned();
    match error.raw_os_error() {
        None => PyOSError::new_err((libc::EINVAL, reason, path)), // the path is no name of a file
        Some(code) if cfg!(windows) => PyOSError::new_err((0, reason, path, code)), // finds errno
        Some(code) => PyOSError::new_err((code, reason, path)),
    }
}

//! The socket of a region.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use georepl::Region;
use tokio::net::{UnixListener, UnixStream};

use crate::exit::{Exit, Failure};

/// A connection to the process that serves the region; none if nobody does.
pub(super) async fn connect(directory: &Path) -> Result<Option<UnixStream>, Failure> {
    let socket = of(directory)?;
    match UnixStream::connect(&socket).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    // It has ended, and has not heard anything.
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot connect to {}: {error}", socket.display());
            Err(Failure::new(Exit::Unreachable, message))
        }
    }
}

/// Where the region of this directory is served; refused if the path is too long for that.
pub(super) fn of(directory: &Path) -> Result<PathBuf, Failure> {
    let socket = Region::socket_in(directory);
    let bytes = unready(&socket).as_os_str().len();
    if bytes > PATH_BYTES_MAX {
        return Err(Failure::failed(format!(
            "the path of the socket {} is longer than the {PATH_BYTES_MAX} bytes that the system allows; \
             go to the directory and give a relative path, or move the region",
            socket.display()
        )));
    }
    Ok(socket)
}

/// Binds the socket of a region that this process holds. What a holder that died has left is replaced.
pub(super) fn bind(socket: &Path) -> io::Result<UnixListener> {
    let unready = unready(socket);
    let private = unready.parent().expect("it lies in a directory");
    // Of a holder that died just here. If it cannot be removed, the next step says so.
    let _ = fs::remove_dir_all(private);
    // A socket has the permissions that the process gives to whatever it makes, until they are changed. In a directory
    // that nobody else can enter, nobody connects before that.
    DirBuilder::new().mode(0o700).create(private)?;
    let listener = UnixListener::bind(&unready)?;
    fs::set_permissions(&unready, Permissions::from_mode(0o600))?;
    fs::rename(&unready, socket)?;
    fs::remove_dir(private)?;
    Ok(listener)
}

/// Where the socket is bound at first.
fn unready(socket: &Path) -> PathBuf {
    socket.with_extension("new").join("s")
}

/// Of the address of a socket on all systems, with its last byte 0.
const PATH_BYTES_MAX: usize = 103;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_is_only_for_its_user_and_takes_the_place_of_what_was_left() {
        let temporary = tempfile::tempdir().unwrap();
        let socket = of(temporary.path()).unwrap();
        let left = unready(&socket);
        fs::create_dir(left.parent().unwrap()).unwrap();
        drop(UnixListener::bind(left).unwrap());
        drop(bind(&socket).unwrap());
        let _listener = bind(&socket).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1, "the socket alone");
        assert!(connect(temporary.path()).await.unwrap().is_some());
    }
}

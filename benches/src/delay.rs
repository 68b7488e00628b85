//! Things that take their time on the way.

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Hands things over in the order they were sent in, each at its time, those that are due together. It ends when the
/// sender is dropped and everything has arrived. The times must not go back.
///
/// # Panics
/// Outside a tokio runtime.
pub fn delay_line<T: Send + 'static>(
    mut deliver: impl FnMut(Vec<T>) + Send + 'static,
) -> mpsc::UnboundedSender<(Instant, T)> {
    let (sender, mut on_the_way) = mpsc::unbounded_channel::<(Instant, T)>();
    tokio::spawn(async move {
        let mut next = on_the_way.recv().await;
        while let Some((at, first)) = next.take() {
            sleep_until(at).await;
            let (now, mut due) = (Instant::now(), vec![first]);
            while let Ok((at, thing)) = on_the_way.try_recv() {
                if at > now {
                    next = Some((at, thing));
                    break;
                }
                due.push(thing);
            }
            deliver(due);
            if next.is_none() {
                next = on_the_way.recv().await;
            }
        }
    });
    sender
}

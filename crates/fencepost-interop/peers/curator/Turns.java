// Takes turns with Curator's InterProcessMutex.
//
// usage: java Turns PORT PATH FOLDER NUMBER

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public final class Turns {
    /** Exposes the path of its node. */
    private static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    public static void main(String[] words) throws Exception {
        String port = words[0], path = words[1], number = words[3];
        Path folder = Path.of(words[2]);
        Path counter = folder.resolve("counter"), start = folder.resolve("start"), stop = folder.resolve("stop");
        CuratorFramework client =
                CuratorFrameworkFactory.newClient("127.0.0.1:" + port, new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        Mutex mutex = new Mutex(client, path);
        try (PrintWriter log = new PrintWriter(Files.newBufferedWriter(folder.resolve("theirs-" + number)), true)) {
            while (!Files.exists(start)) {
                Thread.sleep(5);
            }
            while (!Files.exists(stop)) {
                mutex.acquire();
                int count = Integer.parseInt(Files.readString(counter).trim());
                Thread.sleep(2);
                Files.writeString(counter, Integer.toString(count + 1));
                // The transaction that created the node is the queue position.
                long joined = client.checkExists().forPath(mutex.node()).getCzxid();
                log.println(System.currentTimeMillis() + " " + count + " " + joined);
                mutex.release();
            }
        }
        client.close();
    }
}

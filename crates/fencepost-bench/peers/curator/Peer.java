// A worker of the bench: Curator's InterProcessMutex, or its bare create and delete.
//
// usage: java Peer mutex|bare KIND URL TASKS MILLIS HOLD_MS THINK_MS

import java.net.URI;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;

public final class Peer {
    private static final int TTL_MS = 30_000;

    private static Worker.Lock bare(CuratorFramework client, String path) {
        return new Worker.Lock() {
            public void acquire() throws Exception {
                client.create().creatingParentsIfNeeded().withMode(CreateMode.EPHEMERAL).forPath(path);
            }

            public void release() throws Exception {
                client.delete().forPath(path);
            }
        };
    }

    private static Worker.Lock mutex(CuratorFramework client, String path) {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        return new Worker.Lock() {
            public void acquire() throws Exception {
                mutex.acquire();
            }

            public void release() throws Exception {
                mutex.release();
            }
        };
    }

    public static void main(String[] words) throws Exception {
        URI place = URI.create(words[2]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                place.getAuthority(), TTL_MS, 10_000, new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        boolean bare = words[0].equals("bare");
        Worker.work(words, name -> {
            String path = place.getPath() + "/" + name;
            return bare ? bare(client, path) : mutex(client, path);
        });
        client.close();
    }
}
